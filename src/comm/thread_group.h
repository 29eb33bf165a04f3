// The state that the ranks of a thread group share: where they meet, and the one piece of memory that holds their
// parts.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/meeting.h"
#include "comm/region.h"
#include "megamoe/symmetric_memory.h"

namespace megamoe::comm {

/// Where the memory of all ranks comes from. Used by one thread at a time.
class GroupMemory {
 public:
  virtual ~GroupMemory() = default;
  virtual std::string_view transport() const = 0;
  virtual Device device() const = 0;
  virtual int32_t device_index(uint32_t rank) const {
    static_cast<void>(rank);
    return 0;
  }
  /// Zeroed memory for all ranks. Precondition: there is none.
  virtual Status allocate(uint64_t bytes, uint32_t num_ranks) = 0;
  virtual void release() = 0;

  std::byte* base() const { return base_; }
  uint64_t stride_bytes() const { return sizes_.stride_bytes; }

 protected:
  std::byte* base_ = nullptr;
  RegionSizes sizes_;
};

class ThreadGroup {
 public:
  ThreadGroup(uint32_t num_ranks, std::unique_ptr<GroupMemory> memory)
      : num_ranks_(num_ranks), meeting_(num_ranks), memory_(std::move(memory)) {}

  uint32_t num_ranks() const { return num_ranks_; }

  /// Blocks until all ranks have come, or until the call has failed. The last rank to come runs `complete` while the
  /// others wait; its status becomes everybody's.
  Outcome meet(Arrival arrival, const std::function<Status(const Outcome&)>& complete);
  void leave(uint32_t rank);

  /// For `complete` functions, and for ranks after a successful call.
  Status map_memory(const Outcome& outcome);
  Status unmap_memory();
  const GroupMemory& memory() const { return *memory_; }

 private:
  struct Round {
    bool ended = false;
    Outcome outcome;
  };

  void end_round(Outcome outcome);

  const uint32_t num_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Meeting meeting_;
  std::shared_ptr<Round> round_ = std::make_shared<Round>();
  const std::unique_ptr<GroupMemory> memory_;
};

/// A group of num_ranks threads over `memory`. Precondition: 1 <= num_ranks <= kMaxRanks.
std::vector<std::shared_ptr<SymmetricMemory>> make_members(uint32_t num_ranks, std::unique_ptr<GroupMemory> memory);

}  // namespace megamoe::comm
