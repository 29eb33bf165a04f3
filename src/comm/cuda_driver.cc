// The CUDA driver behind GpuDriver: its functions are found at run time, so that a program starts without a driver.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "comm/gpu_driver.h"
#include "comm/gpu_probe_kernels.h"

namespace megamoe::comm {
namespace {

/// The driver functions in use, under the names of the interface.
struct Functions {
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&::cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemAddressFree) free_range = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&::cuDeviceGetAttribute) attribute = nullptr;
  decltype(&::cuGetErrorName) error_name = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) retain_context = nullptr;
  decltype(&::cuCtxPushCurrent) push_context = nullptr;
  decltype(&::cuCtxPopCurrent) pop_context = nullptr;
  const char* missing = nullptr;  ///< The first that the driver does not offer.

  template <class Function>
  void find(const char* name, Function& function) {
    constexpr unsigned int kVersion = 12000;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
    if (error == cudaSuccess && result == cudaDriverEntryPointSuccess && found != nullptr)
      function = reinterpret_cast<Function>(found);
    else if (missing == nullptr)
      missing = name;
  }

  Functions() {
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemExportToShareableHandle", export_handle);
    find("cuMemImportFromShareableHandle", import_handle);
    find("cuMemAddressReserve", reserve);
    find("cuMemAddressFree", free_range);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", set_access);
    find("cuMemGetAllocationGranularity", granularity);
    find("cuDeviceGetAttribute", attribute);
    find("cuGetErrorName", error_name);
    find("cuDevicePrimaryCtxRetain", retain_context);
    find("cuCtxPushCurrent", push_context);
    find("cuCtxPopCurrent", pop_context);
    cudaGetLastError();
  }
};

Status runtime_status(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // The next call must not report this one again.
  return {error == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kInternal,
          fmt::format("{} answered {} ({})", call, cudaGetErrorName(error), cudaGetErrorString(error))};
}

/// Makes a GPU the calling thread's current one for a while, with a stream that waits for no other. A GPU that this
/// process has not used stays unused, which cudaSetDevice there and back would not leave it.
class OnDevice {
 public:
  OnDevice(const Functions& functions, int32_t device) : functions_(functions) {
    int now = -1;
    error_ = cudaGetDevice(&now);
    if (error_ == cudaSuccess && now != device) {
      CUcontext context = nullptr;  // Kept for good: it is the one that the runtime uses too.
      is_pushed_ = functions_.retain_context(&context, device) == CUDA_SUCCESS &&
                   functions_.push_context(context) == CUDA_SUCCESS;
      if (!is_pushed_) error_ = cudaErrorInvalidDevice;
    }
    if (error_ == cudaSuccess) error_ = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  ~OnDevice() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    CUcontext own = nullptr;
    if (is_pushed_) functions_.pop_context(&own);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  cudaStream_t stream() const { return stream_; }
  /// The first error so far; then what the stream says at its end.
  cudaError_t finish(cudaError_t error) const {
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    return error;
  }
  cudaError_t error() const { return error_; }

 private:
  const Functions& functions_;
  bool is_pushed_ = false;
  cudaStream_t stream_ = nullptr;
  cudaError_t error_ = cudaSuccess;
};

CUmemAllocationProp properties_of(int32_t device, bool with_processes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  if (with_processes) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

CUdeviceptr address_of(std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }

class CudaDriver final : public GpuDriver {
 public:
  const char* missing() const { return f_.missing; }

  int32_t num_devices() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
    return count;
  }

  Result<std::string> uuid(int32_t device) override {
    cudaDeviceProp properties{};
    MEGAMOE_RETURN_IF_ERROR(runtime_status("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device)));
    return std::string(properties.uuid.bytes, sizeof(properties.uuid.bytes));
  }

  Status can_share(int32_t device, bool with_processes) override {
    const auto has = [&](CUdevice_attribute attribute) {
      int value = 0;
      return f_.attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
    };
    if (!has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
      return {Code::kNotSupported, "virtual memory management is not among its attributes"};
    if (with_processes && !has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
      return {Code::kNotSupported, "memory handles as file descriptors are not among its attributes"};
    return {};
  }

  Result<uint64_t> total_bytes(int32_t device) override {
    cudaDeviceProp properties{};
    MEGAMOE_RETURN_IF_ERROR(runtime_status("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device)));
    return uint64_t{properties.totalGlobalMem};
  }

  Result<uint64_t> granularity_bytes(int32_t device) override {
    const CUmemAllocationProp properties = properties_of(device, true);
    size_t bytes = 0;
    MEGAMOE_RETURN_IF_ERROR(status("cuMemGetAllocationGranularity",
                                   f_.granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)));
    return uint64_t{bytes};
  }

  Result<bool> can_access_peer(int32_t from, int32_t to) override {
    int can_access = 0;
    MEGAMOE_RETURN_IF_ERROR(runtime_status("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can_access, from, to)));
    return can_access != 0;
  }

  Result<Allocation> create(int32_t device, uint64_t bytes, bool with_processes) override {
    const OnDevice on(f_, device);  // The driver wants the GPU's context to exist.
    MEGAMOE_RETURN_IF_ERROR(runtime_status("opening the GPU", on.error()));
    const CUmemAllocationProp properties = properties_of(device, with_processes);
    CUmemGenericAllocationHandle handle = 0;
    MEGAMOE_RETURN_IF_ERROR(status("cuMemCreate", f_.create(&handle, bytes, &properties, 0)));
    return Allocation{handle};
  }

  void release(Allocation allocation) override { f_.release(allocation); }

  Result<Descriptor> export_descriptor(Allocation allocation) override {
    int number = -1;
    MEGAMOE_RETURN_IF_ERROR(status("cuMemExportToShareableHandle",
                                   f_.export_handle(&number, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
    return Descriptor(number);
  }

  Result<Allocation> import_descriptor(int descriptor) override {
    CUmemGenericAllocationHandle handle = 0;
    void* const number = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));
    MEGAMOE_RETURN_IF_ERROR(status("cuMemImportFromShareableHandle",
                                   f_.import_handle(&handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
    return Allocation{handle};
  }

  Result<std::byte*> reserve(uint64_t bytes) override {
    CUdeviceptr address = 0;
    MEGAMOE_RETURN_IF_ERROR(status("cuMemAddressReserve", f_.reserve(&address, bytes, 0, 0, 0)));
    return reinterpret_cast<std::byte*>(address);
  }

  void free_range(std::byte* base, uint64_t bytes) override { f_.free_range(address_of(base), bytes); }

  Status map(std::byte* at, uint64_t bytes, Allocation allocation) override {
    return status("cuMemMap", f_.map(address_of(at), bytes, 0, allocation, 0));
  }

  void unmap(std::byte* at, uint64_t bytes) override { f_.unmap(address_of(at), bytes); }

  Status allow(std::byte* at, uint64_t bytes, std::span<const int32_t> devices) override {
    std::vector<CUmemAccessDesc> access;
    for (const int32_t device : devices)
      access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    return status("cuMemSetAccess", f_.set_access(address_of(at), bytes, access.data(), access.size()));
  }

  Status zero(int32_t device, std::byte* at, uint64_t bytes) override {
    const OnDevice on(f_, device);
    cudaError_t error = on.error();
    if (error == cudaSuccess) error = cudaMemsetAsync(at, 0, bytes, on.stream());
    return runtime_status("cudaMemsetAsync", on.finish(error));
  }

  Status tell(int32_t device, const ProbeCall& call) override {
    const OnDevice on(f_, device);
    cudaError_t error = on.error();
    if (error == cudaSuccess) error = launch_tell(call, on.stream());
    return runtime_status("the writing kernel", on.finish(error));
  }

  Result<std::vector<Heard>> hear(int32_t device, const ProbeCall& call) override {
    const OnDevice on(f_, device);
    std::vector<Heard> heard(call.num_ranks, Heard::kNothing);
    cudaError_t error = on.error();
    if (error == cudaSuccess) error = launch_hear(call, on.stream());
    if (error == cudaSuccess)
      error = cudaMemcpyAsync(heard.data(), call.verdicts(), heard.size(), cudaMemcpyDeviceToHost, on.stream());
    MEGAMOE_RETURN_IF_ERROR(runtime_status("the reading kernel", on.finish(error)));
    return heard;
  }

 private:
  Status status(const char* call, CUresult result) const {
    if (result == CUDA_SUCCESS) return {};
    const char* name = nullptr;
    f_.error_name(result, &name);
    return {result == CUDA_ERROR_OUT_OF_MEMORY ? Code::kOutOfMemory : Code::kInternal,
            fmt::format("{} answered {}", call, name != nullptr ? name : "an unknown error")};
  }

  const Functions f_;
};

}  // namespace

Result<GpuDriver*> cuda_driver(const char* where) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return Status{Code::kNotSupported,
                  fmt::format("{}: memory on a GPU needs an NVIDIA driver and a GPU, found none ({}); use a group in "
                              "host memory",
                              where, cudaGetErrorName(error))};
  }
  static CudaDriver driver;
  if (driver.missing() != nullptr)
    return Status{Code::kNotSupported,
                  fmt::format("{}: the driver must offer {}, and it does not; install a driver for CUDA 12 or later",
                              where, driver.missing())};
  return static_cast<GpuDriver*>(&driver);
}

}  // namespace megamoe::comm
