// What groups on GPUs need of a driver: physical memory, addresses, access, and the probe. Without CUDA's headers, so
// that the groups can be tested over a stand-in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/descriptor.h"
#include "comm/gpu_probe.h"
#include "megamoe/status.h"

namespace megamoe::comm {

/// Errors are kOutOfMemory or kInternal with the name of the call and the driver's words; whoever asks says for what.
/// Devices are numbered as the CUDA runtime numbers those that this process sees. Used by one thread at a time for one
/// group; by several groups at once.
class GpuDriver {
 public:
  using Allocation = uint64_t;  ///< Physical memory; never 0.

  virtual ~GpuDriver() = default;

  virtual int32_t num_devices() = 0;
  /// The 16 bytes that name the GPU among all.
  virtual Result<std::string> uuid(int32_t device) = 0;
  /// Ok where memory of the GPU can be placed at chosen addresses, and handed to other processes where asked.
  virtual Status can_share(int32_t device, bool with_processes) = 0;
  virtual Result<uint64_t> total_bytes(int32_t device) = 0;
  virtual Result<uint64_t> granularity_bytes(int32_t device) = 0;
  virtual Result<bool> can_access_peer(int32_t from, int32_t to) = 0;

  /// @param bytes  a multiple of the granularity
  virtual Result<Allocation> create(int32_t device, uint64_t bytes, bool with_processes) = 0;
  /// The memory goes with its last mapping in any process.
  virtual void release(Allocation allocation) = 0;
  virtual Result<Descriptor> export_descriptor(Allocation allocation) = 0;
  virtual Result<Allocation> import_descriptor(int descriptor) = 0;

  virtual Result<std::byte*> reserve(uint64_t bytes) = 0;
  virtual void free_range(std::byte* base, uint64_t bytes) = 0;
  virtual Status map(std::byte* at, uint64_t bytes, Allocation allocation) = 0;
  virtual void unmap(std::byte* at, uint64_t bytes) = 0;
  /// Lets the devices read and write what is mapped at [at, at + bytes).
  virtual Status allow(std::byte* at, uint64_t bytes, std::span<const int32_t> devices) = 0;

  /// Zeroes memory; done on return.
  virtual Status zero(int32_t device, std::byte* at, uint64_t bytes) = 0;
  /// Writes the rank's cell in every region, from the rank's GPU; done on return.
  virtual Status tell(int32_t device, const ProbeCall& call) = 0;
  /// Reads every writer's cell of the own region on the rank's GPU, waiting for each until the timeout.
  virtual Result<std::vector<Heard>> hear(int32_t device, const ProbeCall& call) = 0;
};

/// The CUDA driver of this machine. Errors: kNotSupported in a build without CUDA, or without a driver or a GPU, or
/// with a driver that lacks a function; the sentence begins with `where`.
Result<GpuDriver*> cuda_driver(const char* where);

}  // namespace megamoe::comm
