// Calls the CUDA driver through dlopen.
#include "cli/gpu_probe.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <memory>

namespace megamoe::cli {
namespace {

// As the driver's interface declares them; CUresult, CUdevice and CUdevice_attribute are ints, 0 is success.
using InitFn = int(unsigned);
using IntFn = int(int*);
using DeviceFn = int(int*, int);
using NameFn = int(char*, int, int);
using UuidFn = int(unsigned char*, int);
using AttributeFn = int(int*, int, int);
using MemoryFn = int(size_t*, int);
using PeerFn = int(int*, int, int);
using ErrorFn = int(int, const char**);

constexpr int kMultiprocessorCount = 16;
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;

struct Close {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, Close>;

template <class Function>
Function* find(const Library& library, const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(library.get(), symbol));
}

std::string error_text(const Library& library, const char* call, int error) {
  const char* text = nullptr;
  if (auto* const describe = find<ErrorFn>(library, "cuGetErrorString"); describe != nullptr) describe(error, &text);
  return fmt::format("{} failed with error {}{}", call, error, text == nullptr ? "" : fmt::format(" ({})", text));
}

std::string uuid_text(const std::array<unsigned char, 16>& bytes) {
  std::string text = "GPU-";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

struct Driver {
  explicit Driver(const Library& library)
      : init(find<InitFn>(library, "cuInit")),
        version(find<IntFn>(library, "cuDriverGetVersion")),
        count(find<IntFn>(library, "cuDeviceGetCount")),
        device(find<DeviceFn>(library, "cuDeviceGet")),
        name(find<NameFn>(library, "cuDeviceGetName")),
        uuid(find<UuidFn>(library, "cuDeviceGetUuid")),
        attribute(find<AttributeFn>(library, "cuDeviceGetAttribute")),
        memory(find<MemoryFn>(library, "cuDeviceTotalMem_v2")),
        peer(find<PeerFn>(library, "cuDeviceCanAccessPeer")) {}

  bool complete() const {
    return init != nullptr && version != nullptr && count != nullptr && device != nullptr && name != nullptr &&
           uuid != nullptr && attribute != nullptr && memory != nullptr && peer != nullptr;
  }

  InitFn* init;
  IntFn* version;
  IntFn* count;
  DeviceFn* device;
  NameFn* name;
  UuidFn* uuid;
  AttributeFn* attribute;
  MemoryFn* memory;
  PeerFn* peer;
};

Gpu describe(const Driver& driver, int device) {
  Gpu gpu;
  std::array<char, 256> name{};
  if (driver.name(name.data(), static_cast<int>(name.size()), device) == 0) gpu.name = name.data();
  std::array<unsigned char, 16> uuid{};
  if (driver.uuid(uuid.data(), device) == 0) gpu.uuid = uuid_text(uuid);
  const auto attribute = [&](int which) {
    int value = 0;
    return driver.attribute(&value, which, device) == 0 ? static_cast<uint32_t>(value) : 0U;
  };
  gpu.compute_major = attribute(kComputeMajor);
  gpu.compute_minor = attribute(kComputeMinor);
  gpu.num_sms = attribute(kMultiprocessorCount);
  size_t bytes = 0;
  if (driver.memory(&bytes, device) == 0) gpu.memory_bytes = bytes;
  return gpu;
}

}  // namespace

GpuReport probe_gpus() {
  GpuReport report;
  const Library library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    report.problem = "no NVIDIA driver found (libcuda.so.1)";
    return report;
  }
  const Driver driver(library);
  if (!driver.complete()) {
    report.problem = "the NVIDIA driver (libcuda.so.1) lacks functions that are needed; it is too old";
    return report;
  }
  if (const int error = driver.init(0); error != 0) {
    report.problem = error_text(library, "cuInit", error);
    return report;
  }
  int version = 0;
  if (driver.version(&version) == 0) report.driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  int count = 0;
  if (const int error = driver.count(&count); error != 0) {
    report.problem = error_text(library, "cuDeviceGetCount", error);
    return report;
  }
  std::vector<int> devices(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (const int error = driver.device(&devices[static_cast<size_t>(i)], i); error != 0) {
      report.problem = error_text(library, "cuDeviceGet", error);
      return report;
    }
    report.gpus.push_back(describe(driver, devices[static_cast<size_t>(i)]));
  }
  for (const int from : devices) {
    std::vector<bool>& row = report.peer_access.emplace_back();
    for (const int to : devices) {
      int can_access = 0;
      row.push_back(from == to || (driver.peer(&can_access, from, to) == 0 && can_access != 0));
    }
  }
  return report;
}

}  // namespace megamoe::cli
