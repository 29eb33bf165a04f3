// How a collective call completes, and how it fails with the names of those who are to blame.
#include "comm/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace megamoe::comm {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kLongestTimeoutNs = uint64_t{1} << 60;  // 36 years: stands for "no deadline" and never overflows.

}  // namespace

std::string_view where(Collective collective) {
  switch (collective) {
    case Collective::kJoin:
      return "join_process_group";
    case Collective::kAllocate:
    case Collective::kShare:
    case Collective::kConfirm:
      return "symmetric_memory.allocate";
    case Collective::kRelease:
      return "symmetric_memory.release";
    case Collective::kAllGather:
      return "symmetric_memory.all_gather";
  }
  return "symmetric_memory";
}

uint64_t deadline_after(uint64_t now_ns, uint64_t timeout_ns) {
  return now_ns + (timeout_ns < kLongestTimeoutNs ? timeout_ns : kLongestTimeoutNs);
}

std::string list_ranks(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i != 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += fmt::format("{}", ranks[i]);
  }
  return text;
}

Result<uint64_t> agree_on_bytes(const std::vector<std::string>& contributions) {
  std::vector<uint64_t> bytes(contributions.size(), 0);
  for (size_t rank = 0; rank < contributions.size(); ++rank) {
    const std::string& text = contributions[rank];
    std::from_chars(text.data(), text.data() + text.size(), bytes[rank]);
    if (bytes[rank] == 0)
      return Status{Code::kInvalidArgument,
                    fmt::format("symmetric_memory.allocate: bytes must be at least 1, got 0 on rank {}", rank)};
    if (bytes[rank] != bytes[0])
      return Status{Code::kInvalidArgument,
                    fmt::format("symmetric_memory.allocate: bytes must be equal on all ranks, since all regions share "
                                "one stride, got {} on rank 0 and {} on rank {}; create all ranks with the same sizes",
                                bytes[0], bytes[rank], rank)};
  }
  return bytes[0];
}

Meeting::Meeting(uint32_t num_ranks) : arrivals_(num_ranks) {
  for (uint32_t rank = 0; rank < num_ranks; ++rank) descriptions_.push_back(fmt::format("rank {}", rank));
}

std::vector<uint32_t> Meeting::present() const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < arrivals_.size(); ++rank)
    if (arrivals_[rank]) ranks.push_back(rank);
  return ranks;
}

Outcome Meeting::finish(Status status) {
  Outcome outcome{std::move(status), {}, present()};
  for (auto& arrival : arrivals_) {
    if (arrival && outcome.status.ok()) outcome.contributions.push_back(std::move(arrival->contribution));
    arrival.reset();
  }
  deadline_ns_.reset();
  return outcome;
}

std::optional<Outcome> Meeting::break_off(Code code, std::string reason) {
  const std::vector<uint32_t> ranks = present();
  if (broken_.ok()) broken_ = Status{code, std::move(reason)};
  if (ranks.empty()) return std::nullopt;
  const Collective collective = arrivals_[ranks.front()]->collective;
  return finish({broken_.code(), fmt::format("{}: {}", where(collective), broken_.message())});
}

Status Meeting::broken_status(Collective collective) const {
  const Code code = broken_.code() == Code::kPeerFailed ? Code::kPeerFailed : Code::kPoisoned;
  return {code,
          fmt::format("{}: the group is broken since an earlier event: {}", where(collective), broken_.message())};
}

std::optional<Outcome> Meeting::arrive(Arrival arrival, uint64_t now_ns) {
  const uint32_t rank = arrival.rank;
  for (const auto& other : arrivals_) {
    if (!other || (other->collective == arrival.collective && other->what == arrival.what)) continue;
    std::string reason = fmt::format(
        "all ranks must make the same collective calls in the same order, got {} at '{}' and {} at '{}'; create a new "
        "group",
        describe(other->rank), other->what, describe(rank), arrival.what);
    arrivals_[rank] = std::move(arrival);
    return break_off(Code::kInvalidArgument, std::move(reason));
  }
  const uint64_t deadline_ns =
      deadline_after(now_ns, arrival.timeout_ns - std::min(arrival.spent_ns, arrival.timeout_ns));
  if (!deadline_ns_ || deadline_ns < *deadline_ns_) {
    deadline_ns_ = deadline_ns;
    timeout_ns_ = arrival.timeout_ns;
  }
  arrivals_[rank] = std::move(arrival);
  for (const auto& other : arrivals_)
    if (!other) return std::nullopt;
  for (const auto& other : arrivals_) {
    if (other->contribution_bytes > kMaxContributionBytes)
      return finish({Code::kInvalidArgument,
                     fmt::format("{}: a contribution must have at most {} bytes, got {} from rank {} to '{}'",
                                 where(other->collective), kMaxContributionBytes, other->contribution_bytes,
                                 other->rank, other->what)});
  }
  return finish({});
}

std::optional<Outcome> Meeting::lose(uint32_t rank, std::string_view how) {
  return break_off(Code::kPeerFailed, fmt::format("{} {}; create a new group", describe(rank), how));
}

std::optional<Outcome> Meeting::leave(uint32_t rank) {
  arrivals_[rank].reset();
  return lose(rank, "left the group");
}

std::optional<Outcome> Meeting::die(uint32_t rank) {
  arrivals_[rank].reset();
  return lose(rank, "died");
}

std::optional<Outcome> Meeting::expire(uint64_t now_ns) {
  if (!deadline_ns_ || now_ns < *deadline_ns_) return std::nullopt;
  std::vector<uint32_t> missing;
  std::string_view what;
  for (uint32_t rank = 0; rank < arrivals_.size(); ++rank) {
    if (arrivals_[rank])
      what = arrivals_[rank]->what;
    else
      missing.push_back(rank);
  }
  return break_off(Code::kTimeout,
                   fmt::format("{} did not come to '{}' within {} ms; look for that rank's own error, then create a "
                               "new group",
                               list_ranks(missing), what, timeout_ns_ / kNsPerMs));
}

}  // namespace megamoe::comm
