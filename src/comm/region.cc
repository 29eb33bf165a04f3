// Sizes with overflow checked, and mappings placed on a 2 MiB border.
#include "comm/region.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "comm/system_error.h"
#include "core/integer.h"

namespace megamoe::comm {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
constexpr uint64_t kLargeBytes = uint64_t{256} << 20;
constexpr uint64_t kMostBytes = uint64_t{1} << 62;  // Beyond any address space; keeps the sums below in range.

Status out_of_memory(uint64_t bytes, int error_number) {
  return {Code::kOutOfMemory,
          fmt::format("symmetric_memory.allocate: needs {} bytes of address space for all ranks, got: {}; lower "
                      "max_tokens or raise the limit (ulimit -v, vm.overcommit_memory)",
                      bytes, error_text(error_number))};
}

}  // namespace

Result<RegionSizes> region_sizes(uint64_t bytes, uint32_t num_ranks) {
  if (bytes > kMostBytes / num_ranks)
    return Status{Code::kOutOfMemory,
                  fmt::format("symmetric_memory.allocate: needs {} bytes on each of {} ranks, which no address space "
                              "holds; lower max_tokens",
                              bytes, num_ranks)};
  const uint64_t stride_bytes = core::align_up(bytes, bytes >= kLargeBytes ? kHugePageBytes : kPageBytes);
  return RegionSizes{stride_bytes, stride_bytes * num_ranks};
}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Mapping::reset() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
  base_ = nullptr;
  bytes_ = 0;
}

Result<Mapping> Mapping::map(int flags, int descriptor, uint64_t bytes) {
  // Reserve with slack, place the memory on the border inside, give the slack back.
  const uint64_t reserved_bytes = bytes + kHugePageBytes;
  void* reserved = ::mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return out_of_memory(bytes, errno);
  std::byte* const start = static_cast<std::byte*>(reserved);
  const uint64_t address = reinterpret_cast<uintptr_t>(start);
  const uint64_t head_bytes = core::align_up(address, kHugePageBytes) - address;
  std::byte* const base = start + head_bytes;
  if (::mmap(base, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED | MAP_NORESERVE, descriptor, 0) == MAP_FAILED) {
    const int error_number = errno;
    ::munmap(reserved, reserved_bytes);
    return out_of_memory(bytes, error_number);
  }
  if (head_bytes != 0) ::munmap(start, head_bytes);
  ::munmap(base + bytes, reserved_bytes - head_bytes - bytes);
  Mapping mapping;
  mapping.base_ = base;
  mapping.bytes_ = bytes;
  return mapping;
}

Result<Mapping> Mapping::anonymous(uint64_t bytes) { return map(MAP_PRIVATE | MAP_ANONYMOUS, -1, bytes); }

Result<Mapping> Mapping::shared(int descriptor, uint64_t bytes) { return map(MAP_SHARED, descriptor, bytes); }

}  // namespace megamoe::comm
