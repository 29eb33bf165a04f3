// Owned memory of checkpoint size: cache-line aligned, never zero-filled, an error instead of an exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/integer.h"
#include "megamoe/status.h"

namespace megamoe::io {

/// `size()` elements of a trivial type, 64-byte aligned, contents undefined until written. Movable, not copyable.
template <class T>
class Buffer {
  static_assert(std::is_trivial_v<T>);

 public:
  Buffer() = default;

  /// Fails with kOutOfMemory; the message names `what` and the bytes.
  static Result<Buffer> allocate(uint64_t count, std::string_view what) {
    Buffer buffer;
    uint64_t num_bytes = 0;
    void* memory = nullptr;
    if (core::checked_mul(count, sizeof(T), num_bytes) && num_bytes <= PTRDIFF_MAX) {
      memory = ::operator new (num_bytes == 0 ? 1 : num_bytes, std::align_val_t{kAlignment}, std::nothrow);
    }
    if (memory == nullptr) {
      return Status(Code::kOutOfMemory, "io.allocate: memory for " + std::string(what) + " must be available, " +
                                            std::to_string(count) + " elements of " + std::to_string(sizeof(T)) +
                                            " bytes were not; load fewer experts or free memory");
    }
    buffer.data_.reset(static_cast<T*>(memory));
    buffer.size_ = count;
    return buffer;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  uint64_t size() const { return size_; }
  uint64_t size_bytes() const { return size_ * sizeof(T); }
  bool empty() const { return size_ == 0; }
  T& operator[](uint64_t idx) { return data_.get()[idx]; }
  const T& operator[](uint64_t idx) const { return data_.get()[idx]; }
  std::span<T> span() { return {data_.get(), size_}; }
  std::span<const T> span() const { return {data_.get(), size_}; }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(T* memory) const { ::operator delete (memory, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<T, Free> data_;
  uint64_t size_ = 0;
};

/// Replaces `buffer`; as Buffer::allocate, with a Status alone.
template <class T>
Status allocate(Buffer<T>& buffer, uint64_t count, std::string_view what) {
  Result<Buffer<T>> result = Buffer<T>::allocate(count, what);
  if (!result.ok()) return result.status();
  buffer = std::move(result).value();
  return {};
}

}  // namespace megamoe::io
