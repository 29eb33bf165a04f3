// GPU memory between processes. A descriptor is closed as soon as it is imported, a handle dropped as soon as it is
// mapped: from then on the mappings alone hold the memory.
#include "comm/gpu_process_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/clock.h"
#include "comm/gpu_reach.h"
#include "comm/wire.h"

namespace megamoe::comm {
namespace {

constexpr uint64_t kMostProbeNs = 10'000'000'000;
constexpr uint64_t kSliceNs = 200'000'000;  // After each, a look whether somebody has died.

}  // namespace

Status GpuProcessMemory::map(const Allocating& call) {
  const auto num_ranks = static_cast<uint32_t>(call.names.size());
  Result<RegionSizes> sizes = gpu_region_sizes(driver_, {&device_, 1}, call.bytes, num_ranks);
  Status mine = sizes.status();
  std::vector<GpuAllocation> own;  // One, or none after a failure.
  std::shared_ptr<const Descriptor> descriptor;
  if (mine.ok()) {
    Result<GpuAllocation> created = create_gpu_memory(driver_, device_, sizes.value(), true);
    mine = created.status();
    if (created.ok()) own.push_back(std::move(created).value());
  }
  if (mine.ok()) {
    Result<Descriptor> exported = driver_.export_descriptor(own.front().get());
    if (exported.ok())
      descriptor = std::make_shared<const Descriptor>(std::move(exported).value());
    else
      mine = gpu_step_failed(exported.status(), "exporting memory", device_);
  }
  // The stride goes along: GPUs of different kinds could round it differently.
  Encoder encoder;
  encoder.text(encode_status(mine)).number(sizes.ok() ? sizes->stride_bytes : 0);
  Met met = call.meet({Collective::kShare, "exchange of memory", encoder.take(), std::exchange(descriptor, nullptr)});
  MEGAMOE_RETURN_IF_ERROR(met.outcome.status);
  uint64_t stride_bytes = 0;
  for (const std::string& contribution : met.outcome.contributions) {
    Decoder decoder(contribution);
    MEGAMOE_RETURN_IF_ERROR(decode_status(decoder.text()));
    const uint64_t theirs = decoder.number();
    if (stride_bytes == 0) stride_bytes = theirs;
    if (!decoder.is_complete() || theirs != stride_bytes)
      return {Code::kNotSupported,
              fmt::format("symmetric_memory.allocate: all ranks' GPUs must take memory in the same units, got {} and "
                          "{} bytes for {}; use GPUs of one kind",
                          stride_bytes, theirs, call.bytes)};
  }
  const Status mapped = map_all(call, sizes.value(), own, met.descriptors);
  met.descriptors.clear();
  own.clear();
  MEGAMOE_RETURN_IF_ERROR(confirm(call, "mapping of memory", mapped));
  return probe(call);
}

Status GpuProcessMemory::map_all(const Allocating& call, const RegionSizes& sizes,
                                 const std::vector<GpuAllocation>& own,
                                 const std::vector<std::shared_ptr<const Descriptor>>& descriptors) {
  if (descriptors.size() != call.names.size())
    return {Code::kPeerFailed,
            fmt::format("symmetric_memory.allocate: each of the {} ranks must send one descriptor of memory, got {}; "
                        "run the same megamoe on all ranks",
                        call.names.size(), descriptors.size())};
  if (const Status status = range_.reserve(sizes); !status.ok())
    return gpu_step_failed(status, "reserving addresses", device_);
  for (uint32_t rank = 0; rank < descriptors.size(); ++rank) {
    const auto failed = [&](const Status& status, const char* step) {
      return gpu_step_failed(
          status, fmt::format("{} the memory of {} by {}", step, call.names[rank], call.names[call.rank]), device_);
    };
    Status status;
    if (rank == call.rank) {
      status = range_.map(rank, own.front(), {&device_, 1});
    } else {
      Result<GpuDriver::Allocation> imported = driver_.import_descriptor(descriptors[rank]->get());
      if (!imported.ok()) return failed(imported.status(), "importing");
      const GpuAllocation theirs(driver_, imported.value());
      status = range_.map(rank, theirs, {&device_, 1});
    }
    if (!status.ok()) return failed(status, "mapping");
  }
  const Status zeroed = driver_.zero(device_, range_.region(call.rank), sizes.stride_bytes);
  return zeroed.ok() ? zeroed : gpu_step_failed(zeroed, "zeroing memory", device_);
}

ProbeCall GpuProcessMemory::probe_call(const Allocating& call, uint64_t timeout_ns) const {
  return {range_.base(), range_.sizes().stride_bytes, call.rank, static_cast<uint32_t>(call.names.size()), timeout_ns};
}

Result<std::vector<Heard>> GpuProcessMemory::hear_all(const Allocating& call, uint64_t timeout_ns) {
  const uint64_t start_ns = now_ns();
  for (;;) {
    const uint64_t left_ns = timeout_ns - std::min(timeout_ns, now_ns() - start_ns);
    Result<std::vector<Heard>> heard = driver_.hear(device_, probe_call(call, std::min(left_ns, kSliceNs)));
    if (!heard.ok() || left_ns <= kSliceNs || call.is_broken()) return heard;
    const std::vector<Heard>& found = heard.value();
    if (std::find(found.begin(), found.end(), Heard::kNothing) == found.end()) return heard;
  }
}

Status GpuProcessMemory::probe(const Allocating& call) {
  const uint64_t timeout_ns = std::min(kMostProbeNs, call.left_ns() / 2);
  Status status = driver_.tell(device_, probe_call(call, 0));
  std::vector<std::string> pairs;
  if (status.ok()) {
    const Result<std::vector<Heard>> heard = hear_all(call, timeout_ns);
    status = heard.status();
    if (heard.ok()) pairs = silent_pairs(heard.value(), call.rank, timeout_ns, call.names);
  }
  // All writers have written by now, or are late for good: the group is then refused.
  if (status.ok()) status = driver_.zero(device_, range_.region(call.rank), ProbeCall::kBytes);
  if (!status.ok()) status = gpu_step_failed(status, "the probe of all ranks' memory", device_);

  Encoder encoder;
  encoder.text(encode_status(status)).number(pairs.size());
  for (const std::string& pair : pairs) encoder.text(pair);
  const Met met = call.meet({Collective::kConfirm, "probe of memory", encoder.take(), nullptr});
  MEGAMOE_RETURN_IF_ERROR(met.outcome.status);
  std::vector<std::string> all_pairs;
  for (const std::string& contribution : met.outcome.contributions) {
    Decoder decoder(contribution);
    MEGAMOE_RETURN_IF_ERROR(decode_status(decoder.text()));
    const uint64_t num_pairs = std::min<uint64_t>(decoder.number(), call.names.size());
    for (uint64_t i = 0; i < num_pairs; ++i) all_pairs.push_back(decoder.text());
  }
  return reach_status("symmetric_memory.allocate", all_pairs);
}

}  // namespace megamoe::comm
