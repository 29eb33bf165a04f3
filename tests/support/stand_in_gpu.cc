// Memory files in place of a GPU's memory; what is mapped is out of reach until access is given.
#include "support/stand_in_gpu.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace megamoe::test {
namespace {

constexpr uint64_t kGranularityBytes = uint64_t{2} << 20;

Status failed(const std::string& call) { return {Code::kInternal, "stand-in " + call + " answered a fault"}; }

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

}  // namespace

Status StandInGpu::begin(const std::string& call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(call);
  return call == faults_.failing_call ? failed(call) : Status{};
}

Result<std::string> StandInGpu::uuid(int32_t device) {
  std::string bytes(16, '\x11');
  bytes[0] = static_cast<char>(faults_.visible[static_cast<size_t>(device)]);
  return bytes;
}

Status StandInGpu::can_share(int32_t, bool) { return begin("can_share"); }
Result<uint64_t> StandInGpu::total_bytes(int32_t) { return faults_.total_bytes; }
Result<uint64_t> StandInGpu::granularity_bytes(int32_t) { return kGranularityBytes; }

Result<bool> StandInGpu::can_access_peer(int32_t from, int32_t to) { return faults_.denied.count({from, to}) == 0; }

Result<comm::GpuDriver::Allocation> StandInGpu::create(int32_t, uint64_t bytes, bool) {
  MEGAMOE_RETURN_IF_ERROR(begin("create"));
  comm::Descriptor file(::memfd_create("stand-in", MFD_CLOEXEC));
  if (!file.is_open() || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return failed("memfd");
  const std::lock_guard lock(mutex_);
  allocations_.emplace(next_, std::move(file));
  return next_++;
}

void StandInGpu::release(Allocation allocation) {
  static_cast<void>(begin("release"));
  const std::lock_guard lock(mutex_);
  allocations_.erase(allocation);
}

Result<comm::Descriptor> StandInGpu::export_descriptor(Allocation allocation) {
  MEGAMOE_RETURN_IF_ERROR(begin("export"));
  const std::lock_guard lock(mutex_);
  return comm::Descriptor(::fcntl(allocations_.at(allocation).get(), F_DUPFD_CLOEXEC, 0));
}

Result<comm::GpuDriver::Allocation> StandInGpu::import_descriptor(int descriptor) {
  MEGAMOE_RETURN_IF_ERROR(begin("import"));
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) return failed("import of a stranger");
  const std::lock_guard lock(mutex_);
  allocations_.emplace(next_, comm::Descriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)));
  return next_++;
}

Result<std::byte*> StandInGpu::reserve(uint64_t bytes) {
  MEGAMOE_RETURN_IF_ERROR(begin("reserve"));
  const uint64_t all_bytes = bytes + kGranularityBytes;
  void* const reserved = ::mmap(nullptr, all_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return Status{Code::kOutOfMemory, "stand-in reserve answered no addresses"};
  std::byte* const start = static_cast<std::byte*>(reserved);
  const uint64_t head_bytes = -reinterpret_cast<uintptr_t>(start) % kGranularityBytes;
  if (head_bytes != 0) ::munmap(start, head_bytes);
  if (head_bytes != kGranularityBytes) ::munmap(start + head_bytes + bytes, kGranularityBytes - head_bytes);
  const std::lock_guard lock(mutex_);
  ranges_.insert(start + head_bytes);
  return start + head_bytes;
}

void StandInGpu::free_range(std::byte* base, uint64_t bytes) {
  static_cast<void>(begin("free_range"));
  ::munmap(base, bytes);
  const std::lock_guard lock(mutex_);
  ranges_.erase(base);
}

Status StandInGpu::map(std::byte* at, uint64_t bytes, Allocation allocation) {
  MEGAMOE_RETURN_IF_ERROR(begin("map"));
  const std::lock_guard lock(mutex_);
  const int file = allocations_.at(allocation).get();
  if (::mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) return failed("mmap");
  mappings_.insert(at);
  return {};
}

void StandInGpu::unmap(std::byte* at, uint64_t bytes) {
  static_cast<void>(begin("unmap"));
  void* const nothing = ::mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  const std::lock_guard lock(mutex_);
  if (nothing == at) mappings_.erase(at);
}

Status StandInGpu::allow(std::byte* at, uint64_t bytes, std::span<const int32_t> devices) {
  MEGAMOE_RETURN_IF_ERROR(begin("allow"));
  const std::lock_guard lock(mutex_);
  last_allowed_.assign(devices.begin(), devices.end());
  return ::mprotect(at, bytes, PROT_READ | PROT_WRITE) == 0 ? Status{} : failed("mprotect");
}

Status StandInGpu::zero(int32_t, std::byte* at, uint64_t bytes) {
  MEGAMOE_RETURN_IF_ERROR(begin("zero"));
  if (bytes <= comm::ProbeCall::kBytes) std::memset(at, 0, bytes);  // Else a fresh file: it is zero and takes no pages.
  return {};
}

Status StandInGpu::tell(int32_t, const comm::ProbeCall& call) {
  MEGAMOE_RETURN_IF_ERROR(begin("tell"));
  for (uint32_t owner = 0; owner < call.num_ranks; ++owner) {
    if (faults_.lost.count({call.rank, owner}) != 0) continue;
    comm::ProbeCell& cell = *call.cell(owner, call.rank);
    for (uint32_t i = 0; i < comm::ProbeCell::kNumWords; ++i) cell.words[i] = comm::probe_word(call.rank, owner, i);
    if (faults_.spoilt.count({call.rank, owner}) != 0) cell.words[3] ^= 1;
    const uint64_t flag = comm::probe_word(call.rank, owner, comm::ProbeCell::kNumWords);
    std::atomic_ref(cell.flag).store(flag, std::memory_order_release);
  }
  return {};
}

Result<std::vector<comm::Heard>> StandInGpu::hear(int32_t, const comm::ProbeCall& call) {
  MEGAMOE_RETURN_IF_ERROR(begin("hear"));
  std::vector<comm::Heard> heard;
  const uint64_t start_ns = now_ns();
  for (uint32_t writer = 0; writer < call.num_ranks; ++writer) {
    comm::ProbeCell& cell = *call.cell(call.rank, writer);
    uint64_t flag = 0;
    while ((flag = std::atomic_ref(cell.flag).load(std::memory_order_acquire)) == 0 &&
           now_ns() - start_ns < call.timeout_ns)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    bool right = flag == comm::probe_word(writer, call.rank, comm::ProbeCell::kNumWords);
    for (uint32_t i = 0; i < comm::ProbeCell::kNumWords; ++i)
      right = right && cell.words[i] == comm::probe_word(writer, call.rank, i);
    heard.push_back(flag == 0 ? comm::Heard::kNothing : right ? comm::Heard::kAll : comm::Heard::kWrong);
  }
  return heard;
}

std::vector<std::string> StandInGpu::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

size_t StandInGpu::num_held() const {
  const std::lock_guard lock(mutex_);
  return allocations_.size() + ranges_.size() + mappings_.size();
}

std::vector<int32_t> StandInGpu::last_allowed() const {
  const std::lock_guard lock(mutex_);
  return last_allowed_;
}

}  // namespace megamoe::test
