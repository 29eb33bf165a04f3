// What a transport provides: a group of ranks, and one region of memory per rank that all of them can reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megamoe/shape.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe {

/// One rank's membership in a group. Calls marked collective must be made by every rank, in the same order; each of
/// them ends by its deadline on every rank, with an error that names the ranks that did not come.
class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t num_ranks() const = 0;
  /// "threads", "processes", ...: for messages and reports.
  virtual std::string_view transport() const = 0;
  /// Where base() lies: decides which backends can use the group.
  virtual Device device() const { return Device::kCpu; }
  /// This rank's GPU, as the CUDA runtime of this process counts them; 0 in host memory.
  virtual int32_t device_index() const { return 0; }
  /// What makes this rank distinguishable to people: "rank 2 (pid 4711)".
  virtual std::string describe(uint32_t rank) const = 0;

  /// Collective: gives every rank `bytes` of zeroed memory at base() + rank * stride_bytes(). May be called again after
  /// release().
  /// @param bytes  equal on all ranks, at least 1
  virtual Status allocate(uint64_t bytes, uint64_t timeout_ns) = 0;
  /// Collective: unmaps every rank's memory. No rank may touch it afterwards.
  virtual Status release(uint64_t timeout_ns) = 0;
  /// Null before allocate().
  virtual std::byte* base() const = 0;
  virtual uint64_t stride_bytes() const = 0;
  /// Bytes that this rank's region really takes, padding included; 0 before allocate().
  virtual uint64_t allocated_bytes() const = 0;

  /// Collective: every rank contributes `mine` and receives all contributions by rank. Also a barrier.
  /// @param what  named in the error: "exchange of configurations"
  virtual Result<std::vector<std::string>> all_gather(std::string_view mine, std::string_view what,
                                                      uint64_t timeout_ns) = 0;

  /// What a user of the group should know, a sentence each: ranks as processes that share a GPU, for one.
  virtual std::vector<std::string> warnings() const { return {}; }

  /// Ranks known to be dead (their process ended without leaving the group); empty where the transport cannot tell.
  virtual std::vector<uint32_t> dead_ranks() const { return {}; }

  /// Calls `on_death` once for each rank that died, those already known first, from a thread of the transport, within
  /// 2 s of the death; never where the transport cannot tell. An empty function ends the calls: on return none is
  /// running, so whatever `on_death` touches (this memory, for one) may then go. `on_death` must not block nor call
  /// back into this object.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): transports keep it
  virtual void set_death_callback(std::function<void(uint32_t rank)> on_death) { static_cast<void>(on_death); }
};

/// A group whose ranks are threads of this process; they share one address per byte. Element r is for rank r's thread.
/// @param num_ranks  1 to kMaxRanks
Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_thread_group(uint32_t num_ranks);

/// The same with memory on GPUs, for backend cuda: rank r's memory lies on GPU device_indices[r]. Ranks may share a
/// GPU. Each rank's layer works on its own GPU whatever the current one of its thread is.
/// @param device_indices  one for each rank, 1 to kMaxRanks; as the CUDA runtime counts GPUs
/// Errors: kNotSupported in a build without CUDA, without a driver or GPU, or where a GPU cannot reach another's memory
/// (the sentence names the pairs); kInvalidArgument for an unknown index.
/// allocate() also tries every directed pair: each rank writes into every rank's memory, each owner reads on its GPU.
Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_cuda_thread_group(std::span<const int32_t> device_indices);
/// All ranks on one GPU.
Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_cuda_thread_group(uint32_t num_ranks,
                                                                             int32_t device_index = 0);

}  // namespace megamoe
