// What is known of the GPUs before any memory is taken: that they exist, can share, and reach each other.
#include "comm/gpu_groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/clock.h"
#include "comm/gpu_process_memory.h"
#include "comm/gpu_reach.h"
#include "comm/gpu_thread_memory.h"
#include "comm/process_group.h"
#include "comm/wire.h"

namespace megamoe::comm {
namespace {

/// The GPU's UUID, where it can be used for a group.
Result<std::string> usable_gpu(GpuDriver& driver, std::string_view where, int32_t device, bool with_processes) {
  const int32_t num_devices = driver.num_devices();
  if (device < 0 || device >= num_devices)
    return Status{
        Code::kInvalidArgument,
        fmt::format("{}: device_index must be one of the {} GPUs, counted from 0, got {}", where, num_devices, device)};
  if (const Status status = driver.can_share(device, with_processes); !status.ok())
    return Status{status.code(), fmt::format("{}: GPU {} must be able to share its memory, got: {}; see what megamoe "
                                             "doctor says of it",
                                             where, device, status.message())};
  Result<std::string> uuid = driver.uuid(device);
  if (uuid.ok()) return uuid;
  return Status{uuid.status().code(),
                fmt::format("{}: GPU {} must tell its UUID, got: {}", where, device, uuid.status().message())};
}

/// Collective: tells all ranks each other's GPUs, and every denied pair to all.
Status introduce_gpus(GpuDriver& driver, ProcessMember& member, int32_t device, uint64_t timeout_ns,
                      std::vector<std::string>& uuids) {
  constexpr std::string_view kWhere = "join_cuda_process_group";
  const uint64_t start_ns = now_ns();
  const auto left_ns = [&] { return timeout_ns - std::min(timeout_ns, now_ns() - start_ns); };
  const Result<std::string> uuid = usable_gpu(driver, kWhere, device, true);
  Encoder encoder;
  encoder.text(encode_status(uuid.status())).text(uuid.ok() ? uuid.value() : "");
  const auto all = member.all_gather(encoder.take(), "exchange of GPU identities", left_ns());
  if (!all.ok()) return all.status();
  for (const std::string& contribution : all.value()) {
    Decoder decoder(contribution);
    MEGAMOE_RETURN_IF_ERROR(decode_status(decoder.text()));
    uuids.push_back(decoder.text());
  }
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < member.num_ranks(); ++rank) names.push_back(member.describe(rank));
  const std::vector<std::string> denied = denied_pairs(driver, member.rank(), device, uuids, names);
  Encoder pairs;
  pairs.number(denied.size());
  for (const std::string& pair : denied) pairs.text(pair);
  const auto told = member.all_gather(pairs.take(), "comparison of peer access", left_ns());
  if (!told.ok()) return told.status();
  std::vector<std::string> all_denied;
  for (const std::string& contribution : told.value()) {
    Decoder decoder(contribution);
    const uint64_t count = std::min<uint64_t>(decoder.number(), kMaxRanks);
    for (uint64_t i = 0; i < count; ++i) all_denied.push_back(decoder.text());
  }
  return reach_status(kWhere, all_denied);
}

}  // namespace

Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_gpu_thread_group(GpuDriver& driver,
                                                                            std::span<const int32_t> device_indices) {
  constexpr std::string_view kWhere = "make_cuda_thread_group";
  const auto num_ranks = static_cast<uint32_t>(device_indices.size());
  std::vector<std::string> uuids, names, denied;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    Result<std::string> uuid = usable_gpu(driver, kWhere, device_indices[rank], false);
    if (!uuid.ok()) return uuid.status();
    uuids.push_back(std::move(uuid).value());
    names.push_back(fmt::format("rank {}", rank));
  }
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    const auto mine = denied_pairs(driver, rank, device_indices[rank], uuids, names);
    denied.insert(denied.end(), mine.begin(), mine.end());
  }
  MEGAMOE_RETURN_IF_ERROR(reach_status(kWhere, denied));
  return make_members(num_ranks, std::make_unique<GpuThreadMemory>(
                                     driver, std::vector<int32_t>(device_indices.begin(), device_indices.end())));
}

Result<std::shared_ptr<SymmetricMemory>> join_gpu_process_group(GpuDriver& driver, const ProcessGroupOptions& options,
                                                                int32_t device_index) {
  auto memory = std::make_unique<GpuProcessMemory>(driver, device_index);
  GpuProcessMemory& gpu = *memory;
  const uint64_t start_ns = now_ns();
  auto joined = join(options, std::move(memory));
  if (!joined.ok()) return joined.status();
  ProcessMember& member = *joined.value();
  // A rank whose GPU cannot be used has joined too: so that every rank hears of it.
  const uint64_t left_ns = options.timeout_ns - std::min(options.timeout_ns, now_ns() - start_ns);
  std::vector<std::string> uuids;
  MEGAMOE_RETURN_IF_ERROR(introduce_gpus(driver, member, device_index, left_ns, uuids));
  gpu.set_warnings(sharing_warnings(uuids));
  return std::shared_ptr<SymmetricMemory>(std::move(joined).value());
}

}  // namespace megamoe::comm

namespace megamoe {

namespace {

Status check_num_ranks(uint64_t num_ranks) {
  if (num_ranks >= 1 && num_ranks <= kMaxRanks) return {};
  return {Code::kInvalidArgument,
          fmt::format("make_cuda_thread_group: num_ranks must be 1 to {}, got {}", kMaxRanks, num_ranks)};
}

}  // namespace

Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_cuda_thread_group(std::span<const int32_t> device_indices) {
  MEGAMOE_RETURN_IF_ERROR(check_num_ranks(device_indices.size()));
  const Result<comm::GpuDriver*> driver = comm::cuda_driver("make_cuda_thread_group");
  if (!driver.ok()) return driver.status();
  return comm::make_gpu_thread_group(*driver.value(), device_indices);
}

Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_cuda_thread_group(uint32_t num_ranks, int32_t device_index) {
  MEGAMOE_RETURN_IF_ERROR(check_num_ranks(num_ranks));
  return make_cuda_thread_group(std::vector<int32_t>(num_ranks, device_index));
}

Result<std::shared_ptr<SymmetricMemory>> join_cuda_process_group(const ProcessGroupOptions& options,
                                                                 int32_t device_index) {
  const Result<comm::GpuDriver*> driver = comm::cuda_driver("join_cuda_process_group");
  if (!driver.ok()) return driver.status();
  return comm::join_gpu_process_group(*driver.value(), options, device_index);
}

}  // namespace megamoe
