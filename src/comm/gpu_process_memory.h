// The memory of ranks that are processes with a GPU each: exported as a descriptor, imported and mapped by all.
#pragma once

#include "comm/gpu_range.h"
#include "comm/process_memory.h"

namespace megamoe::comm {

class GpuProcessMemory final : public ProcessMemory {
 public:
  GpuProcessMemory(GpuDriver& driver, int32_t device) : driver_(driver), device_(device), range_(driver) {}

  MemoryKind kind() const override { return MemoryKind::kGpu; }
  std::string_view transport() const override { return "processes on GPUs"; }
  int32_t device_index() const override { return device_; }
  /// Steps, each ended by all ranks: take memory and hand it round; map everybody's; try every directed pair.
  Status map(const Allocating& call) override;
  void release() override { range_.reset(); }
  std::vector<std::string> warnings() const override { return warnings_; }
  std::byte* base() const override { return range_.base(); }
  RegionSizes sizes() const override { return range_.sizes(); }

  /// Found when the group formed.
  void set_warnings(std::vector<std::string> warnings) { warnings_ = std::move(warnings); }

 private:
  Status map_all(const Allocating& call, const RegionSizes& sizes, const std::vector<GpuAllocation>& own,
                 const std::vector<std::shared_ptr<const Descriptor>>& descriptors);
  ProbeCall probe_call(const Allocating& call, uint64_t timeout_ns) const;
  Status probe(const Allocating& call);
  Result<std::vector<Heard>> hear_all(const Allocating& call, uint64_t timeout_ns);

  GpuDriver& driver_;
  const int32_t device_;
  GpuRange range_;
  std::vector<std::string> warnings_;
};

}  // namespace megamoe::comm
