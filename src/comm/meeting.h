// The rules by which ranks meet in a collective call, free of threads, clocks and sockets: both transports follow them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megamoe/status.h"

namespace megamoe::comm {

/// kShare: every rank brings a descriptor and gets those of all ranks.
enum class Collective : uint8_t { kJoin, kAllocate, kShare, kConfirm, kRelease, kAllGather };

/// Whose memory the ranks of a group of processes share; the same on all of them.
enum class MemoryKind : uint8_t { kHost, kGpu };

/// "symmetric_memory.all_gather": how messages about the call begin.
std::string_view where(Collective collective);

/// One rank's entry into a collective call.
struct Arrival {
  uint32_t rank = 0;
  Collective collective = Collective::kAllGather;
  std::string what;  ///< The same on all ranks; named in errors.
  std::string contribution;
  uint64_t contribution_bytes = 0;  ///< What the rank wanted to contribute; above the limit, `contribution` is empty.
  uint64_t timeout_ns = 0;          ///< Named in errors.
  uint64_t spent_ns = 0;            ///< The part of it that had passed before the arrival.
};

/// How a call ended, the same for all ranks that had come.
struct Outcome {
  Status status;
  std::vector<std::string> contributions;  ///< By rank, when ok.
  std::vector<uint32_t> ranks;             ///< Who had come and is to be told.
};

inline constexpr uint64_t kMaxContributionBytes = uint64_t{16} << 20;

/// One call at a time. After a failure that leaves ranks at different points (a rank left, died, was late or called
/// something else) the meeting is broken for good: broken() is not ok and no further call can succeed.
class Meeting {
 public:
  explicit Meeting(uint32_t num_ranks);

  /// "rank 2 (pid 4711)"; "rank 2" unless set.
  const std::string& describe(uint32_t rank) const { return descriptions_[rank]; }
  void set_description(uint32_t rank, std::string description) { descriptions_[rank] = std::move(description); }

  /// Each of these answers the outcome when it ends the current call. Precondition of arrive: broken() is ok and the
  /// rank has not come yet.
  std::optional<Outcome> arrive(Arrival arrival, uint64_t now_ns);
  std::optional<Outcome> leave(uint32_t rank);
  std::optional<Outcome> die(uint32_t rank);
  std::optional<Outcome> expire(uint64_t now_ns);
  std::optional<Outcome> refuse(Code code, std::string reason) { return break_off(code, std::move(reason)); }

  bool has_come(uint32_t rank) const { return arrivals_[rank].has_value(); }
  /// The earliest deadline of the ranks that have come to the current call.
  std::optional<uint64_t> deadline_ns() const { return deadline_ns_; }
  const Status& broken() const { return broken_; }
  /// The status of a call that a rank tries after the meeting broke.
  Status broken_status(Collective collective) const;

 private:
  std::vector<uint32_t> present() const;
  Outcome finish(Status status);
  std::optional<Outcome> break_off(Code code, std::string reason);
  std::optional<Outcome> lose(uint32_t rank, std::string_view how);

  std::vector<std::string> descriptions_;
  std::vector<std::optional<Arrival>> arrivals_;
  std::optional<uint64_t> deadline_ns_;
  uint64_t timeout_ns_ = 0;
  Status broken_;
};

/// now + timeout without overflow.
uint64_t deadline_after(uint64_t now_ns, uint64_t timeout_ns);

/// "rank 2", "ranks 1 and 2", "ranks 0, 1 and 2".
std::string list_ranks(const std::vector<uint32_t>& ranks);

/// What all ranks said about the size of an allocation: the size, or why it is refused everywhere.
Result<uint64_t> agree_on_bytes(const std::vector<std::string>& contributions);

}  // namespace megamoe::comm
