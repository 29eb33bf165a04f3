// Which ranks cannot reach which: by what the driver says of peers, and by what a probe found; as sentences.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/gpu_driver.h"

namespace megamoe::comm {

/// The rank's pairs (from it, to each other) that the driver denies, each as a phrase; empty where all is well. Peers
/// whose GPU this process does not see are left to the probe.
/// @param uuids  of all ranks' GPUs
/// @param names  of all ranks, "rank 2 (pid 4711)"
std::vector<std::string> denied_pairs(GpuDriver& driver, uint32_t rank, int32_t device,
                                      std::span<const std::string> uuids, std::span<const std::string> names);

/// The pairs (from each writer, to this owner) whose cells did not arrive as written, each as a phrase.
std::vector<std::string> silent_pairs(std::span<const Heard> heard, uint32_t owner, uint64_t waited_ns,
                                      std::span<const std::string> names);

/// Ok where there are none; else one sentence with at most 8 of them.
Status reach_status(std::string_view where, const std::vector<std::string>& pairs);

/// "GPU-0123abcd-...", as nvidia-smi writes it.
std::string uuid_text(std::string_view uuid);

/// One sentence for each GPU that several processes of the group share; their kernels then take turns.
std::vector<std::string> sharing_warnings(std::span<const std::string> uuids);

}  // namespace megamoe::comm
