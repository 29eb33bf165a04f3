// One process's membership in a group of processes.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/channel.h"
#include "comm/coordinator.h"
#include "comm/meeting.h"
#include "comm/process_memory.h"
#include "megamoe/process_group.h"
#include "megamoe/symmetric_memory.h"

namespace megamoe::comm {

/// A pipe whose write end only its rank holds: the kernel closes it with the process, and every other rank sees that.
/// A rank that leaves in order writes one byte first, which nobody reads.
struct Lifeline {
  Descriptor read_end;
  Descriptor write_end;

  void say_goodbye() const;
};

/// What a process holds once it has joined.
struct Joined {
  uint32_t rank = 0;
  Channel hub;  ///< To the coordinator.
  Lifeline own;
  std::vector<std::string> descriptions;                     ///< By rank.
  std::vector<std::shared_ptr<const Descriptor>> lifelines;  ///< Read ends by rank.
  std::unique_ptr<Coordinator> coordinator;                  ///< On rank 0.
  Descriptor wake;                                           ///< An eventfd for the watcher thread.
};

class ProcessMember final : public SymmetricMemory {
 public:
  ProcessMember(Joined joined, std::unique_ptr<ProcessMemory> memory);
  ~ProcessMember() override;
  ProcessMember(const ProcessMember&) = delete;
  ProcessMember& operator=(const ProcessMember&) = delete;

  uint32_t rank() const override { return joined_.rank; }
  uint32_t num_ranks() const override { return static_cast<uint32_t>(joined_.descriptions.size()); }
  std::string_view transport() const override { return memory_->transport(); }
  Device device() const override { return memory_->kind() == MemoryKind::kGpu ? Device::kCuda : Device::kCpu; }
  int32_t device_index() const override { return memory_->device_index(); }
  std::string describe(uint32_t rank) const override;

  Status allocate(uint64_t bytes, uint64_t timeout_ns) override;
  Status release(uint64_t timeout_ns) override;
  std::byte* base() const override { return memory_->base(); }
  uint64_t stride_bytes() const override { return memory_->sizes().stride_bytes; }
  uint64_t allocated_bytes() const override { return memory_->sizes().stride_bytes; }
  std::vector<std::string> warnings() const override { return memory_->warnings(); }

  Result<std::vector<std::string>> all_gather(std::string_view mine, std::string_view what,
                                              uint64_t timeout_ns) override;

  std::vector<uint32_t> dead_ranks() const override;
  void set_death_callback(std::function<void(uint32_t rank)> on_death) override;

 private:
  Met meet(Arrival arrival, std::shared_ptr<const Descriptor> descriptor = nullptr);

  void watch();
  void take_answers();
  bool is_watching(uint32_t rank) const;
  void look_at_lifelines(const std::vector<uint32_t>& hung_up);
  void report_death(uint32_t rank);
  void break_locked(Code code, std::string reason);
  Status broken_status_locked(Collective collective) const;
  void wake();

  Joined joined_;
  const std::unique_ptr<ProcessMemory> memory_;  // Used by the calling thread only.

  mutable std::mutex mutex_;  // Guards the members up to here except the memory, and those below.
  std::condition_variable changed_;
  std::optional<Met> answer_;
  bool is_waiting_ = false;
  bool is_leaving_ = false;
  Status broken_;
  std::vector<uint32_t> dead_;
  std::vector<uint32_t> left_;
  uint64_t hub_lost_ns_ = 0;  // 0: connected.

  std::mutex callback_mutex_;  // Held while the callback runs.
  std::function<void(uint32_t)> on_death_;
  std::vector<uint32_t> deaths_told_;

  std::thread watcher_;
};

/// Joins with memory of some kind; blocks until all ranks have come.
Result<std::shared_ptr<ProcessMember>> join(const ProcessGroupOptions& options, std::unique_ptr<ProcessMemory> memory);

}  // namespace megamoe::comm
