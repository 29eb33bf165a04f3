// Pairs of ranks in words.
#include "comm/gpu_reach.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/meeting.h"

namespace megamoe::comm {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr size_t kMostPairs = 8;

}  // namespace

std::string uuid_text(std::string_view uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                        static_cast<unsigned>(static_cast<unsigned char>(uuid[i])));
  return text;
}

std::vector<std::string> denied_pairs(GpuDriver& driver, uint32_t rank, int32_t device,
                                      std::span<const std::string> uuids, std::span<const std::string> names) {
  std::vector<std::string> seen;
  for (int32_t other = 0; other < driver.num_devices(); ++other) {
    Result<std::string> uuid = driver.uuid(other);
    seen.push_back(uuid.ok() ? std::move(uuid).value() : "");
  }
  std::vector<std::string> pairs;
  for (uint32_t peer = 0; peer < uuids.size(); ++peer) {
    if (uuids[peer] == uuids[rank]) continue;
    const auto found = std::find(seen.begin(), seen.end(), uuids[peer]);
    if (found == seen.end()) continue;
    const Result<bool> can = driver.can_access_peer(device, static_cast<int32_t>(found - seen.begin()));
    if (can.ok() && can.value()) continue;
    pairs.push_back(fmt::format("{} on {} cannot access the memory of {} on {}{}", names[rank], uuid_text(uuids[rank]),
                                names[peer], uuid_text(uuids[peer]),
                                can.ok() ? "" : fmt::format(" ({})", can.status().message())));
  }
  return pairs;
}

std::vector<std::string> silent_pairs(std::span<const Heard> heard, uint32_t owner, uint64_t waited_ns,
                                      std::span<const std::string> names) {
  std::vector<std::string> pairs;
  for (uint32_t writer = 0; writer < heard.size(); ++writer) {
    if (heard[writer] == Heard::kAll) continue;
    pairs.push_back(heard[writer] == Heard::kWrong
                        ? fmt::format("what {} wrote is not what {} found in its memory", names[writer], names[owner])
                        : fmt::format("what {} wrote did not arrive in the memory of {} within {} ms", names[writer],
                                      names[owner], waited_ns / kNsPerMs));
  }
  return pairs;
}

Status reach_status(std::string_view where, const std::vector<std::string>& pairs) {
  if (pairs.empty()) return {};
  const size_t shown = std::min(pairs.size(), kMostPairs);
  std::string text = fmt::format("{}", fmt::join(pairs.begin(), pairs.begin() + static_cast<ptrdiff_t>(shown), ", "));
  if (shown < pairs.size()) text += fmt::format(" and {} more pairs", pairs.size() - shown);
  return {Code::kNotSupported,
          fmt::format("{}: every rank must read and write every rank's memory, got: {}; choose GPUs that NVLink joins "
                      "(nvidia-smi topo -m, megamoe doctor)",
                      where, text)};
}

std::vector<std::string> sharing_warnings(std::span<const std::string> uuids) {
  std::vector<std::string> warnings;
  for (uint32_t rank = 0; rank < uuids.size(); ++rank) {
    std::vector<uint32_t> sharing;
    for (uint32_t other = 0; other < uuids.size(); ++other)
      if (uuids[other] == uuids[rank]) sharing.push_back(other);
    if (sharing.size() < 2 || sharing.front() != rank) continue;
    warnings.push_back(
        fmt::format("{} are processes that share {}: unless an MPS server runs, their kernels take turns on it and "
                    "every call waits for time slices; use a GPU for each process, or threads of one process",
                    list_ranks(sharing), uuid_text(uuids[rank])));
  }
  return warnings;
}

}  // namespace megamoe::comm
