// Ranks as processes of one host: how a process says which rank of which group it is, and joins.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "megamoe/status.h"
#include "megamoe/symmetric_memory.h"

namespace megamoe {

struct ProcessGroupOptions {
  uint32_t rank = 0;
  uint32_t num_ranks = 1;  ///< 1 to kMaxRanks.
  /// Names the group among those of this user on this host: equal on its ranks, unlike any other group's that forms at
  /// the same time.
  std::string name;
  /// An absolute path: the folder in which the ranks meet, owned by this user with mode 0700; rank 0 creates it where
  /// it is missing. Empty: $XDG_RUNTIME_DIR/megamoe or else /tmp/megamoe-<uid>.
  std::string rendezvous_dir;
  uint64_t timeout_ns = 300'000'000'000;  ///< For all ranks to come.
};

/// Reads which rank this process is from its launcher: RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun), or
/// else OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK and, where set, _LOCAL_SIZE (mpirun). The group's name comes from
/// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT or PMIX_NAMESPACE and
/// OMPI_MCA_ess_base_jobid (no port is opened); where none of them is set, ranks with the same parent process form a
/// group. MEGAMOE_RENDEZVOUS sets rendezvous_dir.
/// Errors: kNotSupported without a launcher, or where the ranks span several hosts; kInvalidArgument for a part of the
/// variables, or a malformed number.
Result<ProcessGroupOptions> process_group_from_environment();

/// Joins the group: blocks until all of its ranks have come. Its sockets, and one thread that watches them, live as
/// long as the result. A peer's death ends every collective call at once and is told to the death callback; a process
/// that forks must not let the child outlive it, or its death goes unseen.
/// Memory: one memory file for all ranks, mapped by each.
/// Errors: kTimeout naming the ranks that did not come; kInvalidArgument on all ranks for two processes with one rank
/// or a differing num_ranks; kInvalidArgument for a rendezvous folder that others could reach.
Result<std::shared_ptr<SymmetricMemory>> join_process_group(const ProcessGroupOptions& options);

/// The same with memory on GPUs, for backend cuda: this rank's memory lies on its GPU and is mapped by every rank. GPUs
/// are told apart by their UUID, so ranks may see different ones under the same index. Ranks that share a GPU take
/// turns on it (see warnings()). Must not be called in a process that was forked after a use of CUDA.
/// @param device_index  as the CUDA runtime of this process counts GPUs
/// Errors: also kNotSupported in a build without CUDA or without a driver or GPU; kInvalidArgument for an unknown
/// index, or where other ranks join with host memory; kNotSupported on all ranks where a GPU cannot reach another's
/// memory (the sentence names the pairs), found here and by the probe of allocate().
Result<std::shared_ptr<SymmetricMemory>> join_cuda_process_group(const ProcessGroupOptions& options,
                                                                 int32_t device_index);

}  // namespace megamoe
