// How a caller describes memory that it owns: where, which type, which extents, which strides.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace megamoe {

enum class DType : uint8_t {
  kNone = 0,
  kFloat32,
  kBFloat16,
  kFloat8E4M3,  ///< e4m3fn: largest value 448, no infinity, 0x7f and 0xff are NaN.
  kFloat8E8M0,  ///< UE8M0: a power of two as one exponent byte, 2^(code - 127); 0xff is NaN.
  kInt32,
  kInt64,
  kUInt8,
};

/// "float32", "bfloat16", "float8_e4m3fn", ...
std::string_view name(DType dtype);
/// Bytes of one element; 0 for kNone.
uint32_t element_bytes(DType dtype);

enum class Device : uint8_t { kCpu = 0, kCuda };

/// A view of caller-owned memory. Never owns, never copies. A view with zero elements may have a null `data`.
struct TensorView {
  static constexpr uint32_t kMaxRank = 5;

  void* data = nullptr;
  DType dtype = DType::kNone;
  uint32_t num_dims = 0;
  std::array<int64_t, kMaxRank> shape{};    ///< Extents, outermost first.
  std::array<int64_t, kMaxRank> strides{};  ///< In elements, outermost first.
  Device device = Device::kCpu;
  int32_t device_index = 0;

  /// A dense row-major view.
  static TensorView dense(const void* data, DType dtype, std::initializer_list<int64_t> shape);

  bool present() const { return dtype != DType::kNone; }
  int64_t num_elements() const;
  bool is_dense() const;
};

}  // namespace megamoe
