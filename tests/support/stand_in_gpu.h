// A driver of GPUs that are memory files: real descriptors, mappings and access rights, and faults on demand.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/gpu_driver.h"

namespace megamoe::test {

/// What goes wrong, and what the process sees.
struct StandInFaults {
  std::vector<uint8_t> visible{0, 1, 2, 3};        ///< GPU behind each device index of this process.
  std::set<std::pair<int32_t, int32_t>> denied;    ///< Device pairs (from, to) without peer access.
  std::set<std::pair<uint32_t, uint32_t>> lost;    ///< Rank pairs (writer, owner) whose writes do not arrive.
  std::set<std::pair<uint32_t, uint32_t>> spoilt;  ///< Whose words arrive wrong.
  std::string failing_call;                        ///< "map", "import", ...: fails with kInternal.
  uint64_t total_bytes = uint64_t{64} << 30;
};

class StandInGpu final : public comm::GpuDriver {
 public:
  explicit StandInGpu(StandInFaults faults = {}) : faults_(std::move(faults)) {}

  int32_t num_devices() override { return static_cast<int32_t>(faults_.visible.size()); }
  Result<std::string> uuid(int32_t device) override;
  Status can_share(int32_t device, bool with_processes) override;
  Result<uint64_t> total_bytes(int32_t device) override;
  Result<uint64_t> granularity_bytes(int32_t device) override;
  Result<bool> can_access_peer(int32_t from, int32_t to) override;
  Result<Allocation> create(int32_t device, uint64_t bytes, bool with_processes) override;
  void release(Allocation allocation) override;
  Result<comm::Descriptor> export_descriptor(Allocation allocation) override;
  Result<Allocation> import_descriptor(int descriptor) override;
  Result<std::byte*> reserve(uint64_t bytes) override;
  void free_range(std::byte* base, uint64_t bytes) override;
  Status map(std::byte* at, uint64_t bytes, Allocation allocation) override;
  void unmap(std::byte* at, uint64_t bytes) override;
  Status allow(std::byte* at, uint64_t bytes, std::span<const int32_t> devices) override;
  Status zero(int32_t device, std::byte* at, uint64_t bytes) override;
  Status tell(int32_t device, const comm::ProbeCall& call) override;
  Result<std::vector<comm::Heard>> hear(int32_t device, const comm::ProbeCall& call) override;

  /// The calls so far by name, in order: "create", "map", ...
  std::vector<std::string> calls() const;
  /// Allocations, mappings and ranges that live.
  size_t num_held() const;
  /// GPUs that were let into the last mapping.
  std::vector<int32_t> last_allowed() const;

 private:
  /// Notes the call; an error where it is to fail.
  Status begin(const std::string& call);

  const StandInFaults faults_;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
  std::map<Allocation, comm::Descriptor> allocations_;
  std::set<std::byte*> ranges_, mappings_;
  std::vector<int32_t> last_allowed_;
  Allocation next_ = 1;
};

}  // namespace megamoe::test
