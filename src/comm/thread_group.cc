// Ranks as threads of one process: collective calls over a mutex; host memory in one anonymous mapping.
#include "comm/thread_group.h"

#include <fmt/format.h>

#include <utility>

#include "comm/clock.h"
#include "megamoe/symmetric_memory.h"

namespace megamoe::comm {

void ThreadGroup::end_round(Outcome outcome) {
  round_->outcome = std::move(outcome);
  round_->ended = true;
  round_ = std::make_shared<Round>();
  changed_.notify_all();
}

Outcome ThreadGroup::meet(Arrival arrival, const std::function<Status(const Outcome&)>& complete) {
  std::unique_lock lock(mutex_);
  if (!meeting_.broken().ok()) return {meeting_.broken_status(arrival.collective), {}, {}};
  if (meeting_.has_come(arrival.rank))
    return {{Code::kInvalidArgument,
             fmt::format("{}: one call at a time may be made on a rank, got a second one on rank {} at '{}'",
                         where(arrival.collective), arrival.rank, arrival.what)},
            {},
            {}};
  const std::shared_ptr<Round> round = round_;
  const uint64_t start_ns = now_ns();
  const uint64_t deadline_ns = deadline_after(start_ns, arrival.timeout_ns);
  if (auto outcome = meeting_.arrive(std::move(arrival), start_ns)) {
    if (outcome->status.ok()) outcome->status = complete(*outcome);
    end_round(*std::move(outcome));
  }
  while (!round->ended) {
    changed_.wait_until(lock, time_point_of(deadline_ns));
    if (round->ended) break;
    if (auto outcome = meeting_.expire(now_ns())) end_round(*std::move(outcome));
  }
  return round->outcome;
}

void ThreadGroup::leave(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  if (auto outcome = meeting_.leave(rank)) end_round(*std::move(outcome));
}

Status ThreadGroup::map_memory(const Outcome& outcome) {
  const Result<uint64_t> bytes = agree_on_bytes(outcome.contributions);
  if (!bytes.ok()) return bytes.status();
  return memory_->allocate(bytes.value(), num_ranks_);
}

Status ThreadGroup::unmap_memory() {
  memory_->release();
  return {};
}

namespace {

class HostMemory final : public GroupMemory {
 public:
  std::string_view transport() const override { return "threads"; }
  Device device() const override { return Device::kCpu; }

  Status allocate(uint64_t bytes, uint32_t num_ranks) override {
    const Result<RegionSizes> sizes = region_sizes(bytes, num_ranks);
    if (!sizes.ok()) return sizes.status();
    Result<Mapping> mapping = Mapping::anonymous(sizes.value().total_bytes);
    if (!mapping.ok()) return mapping.status();
    mapping_ = std::move(mapping).value();
    base_ = mapping_.base();
    sizes_ = sizes.value();
    return {};
  }

  void release() override {
    mapping_.reset();
    base_ = nullptr;
    sizes_ = {};
  }

 private:
  Mapping mapping_;
};

class ThreadMember final : public SymmetricMemory {
 public:
  ThreadMember(std::shared_ptr<ThreadGroup> group, uint32_t rank) : group_(std::move(group)), rank_(rank) {}
  ~ThreadMember() override { group_->leave(rank_); }
  ThreadMember(const ThreadMember&) = delete;
  ThreadMember& operator=(const ThreadMember&) = delete;

  uint32_t rank() const override { return rank_; }
  uint32_t num_ranks() const override { return group_->num_ranks(); }
  std::string_view transport() const override { return group_->memory().transport(); }
  Device device() const override { return group_->memory().device(); }
  int32_t device_index() const override { return group_->memory().device_index(rank_); }
  std::string describe(uint32_t rank) const override { return fmt::format("rank {}", rank); }

  Status allocate(uint64_t bytes, uint64_t timeout_ns) override {
    if (base_ != nullptr)
      return {Code::kInvalidArgument, fmt::format("symmetric_memory.allocate: rank {} must have no memory yet, has {} "
                                                  "bytes; release() them first",
                                                  rank_, stride_bytes_)};
    Arrival arrival{rank_, Collective::kAllocate, "allocation of memory", fmt::format("{}", bytes), 0, timeout_ns, 0};
    const Outcome met =
        group_->meet(std::move(arrival), [this](const Outcome& outcome) { return group_->map_memory(outcome); });
    MEGAMOE_RETURN_IF_ERROR(met.status);
    base_ = group_->memory().base();
    stride_bytes_ = group_->memory().stride_bytes();
    return {};
  }

  Status release(uint64_t timeout_ns) override {
    base_ = nullptr;
    stride_bytes_ = 0;
    Arrival arrival{rank_, Collective::kRelease, "release of memory", {}, 0, timeout_ns, 0};
    return group_->meet(std::move(arrival), [this](const Outcome&) { return group_->unmap_memory(); }).status;
  }

  std::byte* base() const override { return base_; }
  uint64_t stride_bytes() const override { return stride_bytes_; }
  uint64_t allocated_bytes() const override { return stride_bytes_; }

  Result<std::vector<std::string>> all_gather(std::string_view mine, std::string_view what,
                                              uint64_t timeout_ns) override {
    const bool fits = mine.size() <= kMaxContributionBytes;
    Arrival arrival{
        rank_, Collective::kAllGather, std::string(what), std::string(fits ? mine : ""), mine.size(), timeout_ns, 0};
    Outcome met = group_->meet(std::move(arrival), [](const Outcome&) { return Status{}; });
    if (!met.status.ok()) return met.status;
    return std::move(met.contributions);
  }

 private:
  const std::shared_ptr<ThreadGroup> group_;
  const uint32_t rank_;
  std::byte* base_ = nullptr;
  uint64_t stride_bytes_ = 0;
};

}  // namespace

std::vector<std::shared_ptr<SymmetricMemory>> make_members(uint32_t num_ranks, std::unique_ptr<GroupMemory> memory) {
  const auto group = std::make_shared<ThreadGroup>(num_ranks, std::move(memory));
  std::vector<std::shared_ptr<SymmetricMemory>> members;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) members.push_back(std::make_shared<ThreadMember>(group, rank));
  return members;
}

}  // namespace megamoe::comm

namespace megamoe {

Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_thread_group(uint32_t num_ranks) {
  if (num_ranks < 1 || num_ranks > kMaxRanks)
    return Status{Code::kInvalidArgument,
                  fmt::format("make_thread_group: num_ranks must be 1 to {}, got {}", kMaxRanks, num_ranks)};
  return comm::make_members(num_ranks, std::make_unique<comm::HostMemory>());
}

}  // namespace megamoe
