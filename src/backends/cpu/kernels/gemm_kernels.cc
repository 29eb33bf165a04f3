// The FP8 GEMM block, once per SIMD level: per K block the weights are decoded into an FP32 panel that is transposed to
// [k][column], then register tiles run over k in ascending order.
//
// A product of two E4M3 numbers has at most 8 significant bits, so it is exact in FP32: a fused and a separate
// multiply-add give the same bits, and with one order of k all levels agree. Only the promotion needs a true fmaf.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "backends/cpu/kernels/kernel_table.h"
#include "backends/cpu/kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/gemm_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/kernels/e4m3_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megamoe::cpu {
namespace HWY_NAMESPACE {

constexpr size_t kDepth = kScaleGroup;
constexpr size_t kPairColumns = 2 * kLanes;  // a panel strip: two vectors of columns, contiguous over k
constexpr size_t kStripFloats = kDepth * kPairColumns;
constexpr size_t kPanelFloats = kDepth * kMaxGemmColumns;
// Sums are kept dense beside the panels until the last K block: a caller's rows may lie a power of two apart, where
// each K block would throw them out of the cache again.
constexpr size_t kSumsStride = kMaxGemmColumns;

// Register budget: accumulators of one tile, and the most rows of a tile that is two vectors wide.
#if HWY_TARGET == HWY_AVX3
constexpr size_t kMaxAccumulators = 24;
#else
constexpr size_t kMaxAccumulators = 12;
#endif
constexpr size_t kMaxTileRows = kMaxAccumulators / 2;

/// One register tile of one K block: `sums` is updated in place.
struct Tile {
  const float* a;       // [rows][kDepth], each chunk of 4 * kLanes values in lane order (see decode_row)
  const float* strips;  // [vectors / 2][kDepth][kPairColumns]
  size_t depth;
  const float* a_scales;  // element r at r * a_scale_row_stride
  int64_t a_scale_row_stride;
  float b_scale;
  float* sums;  // [rows] at kSumsStride
};

HWY_INLINE VF fused_multiply_add(VF a, VF b, VF c) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float a_lanes[kLanes];
  HWY_ALIGN float b_lanes[kLanes];
  HWY_ALIGN float c_lanes[kLanes];
  hn::Store(a, DF(), a_lanes);
  hn::Store(b, DF(), b_lanes);
  hn::Store(c, DF(), c_lanes);
  for (size_t i = 0; i < kLanes; ++i) c_lanes[i] = std::fmaf(a_lanes[i], b_lanes[i], c_lanes[i]);
  return hn::Load(DF(), c_lanes);
#endif
}

template <size_t... kIndex>
HWY_INLINE void load_columns(const float* HWY_RESTRICT strips, VF* HWY_RESTRICT b, std::index_sequence<kIndex...>) {
  ((b[kIndex] = hn::Load(DF(), strips + (kIndex / 2) * kStripFloats + (kIndex % 2) * kLanes)), ...);
}

template <size_t... kVector>
HWY_INLINE void accumulate_row(VF a, const VF* HWY_RESTRICT b, VF* HWY_RESTRICT part, std::index_sequence<kVector...>) {
  ((part[kVector] = hn::MulAdd(a, b[kVector], part[kVector])), ...);
}

template <size_t kVectors, size_t... kRow>
HWY_INLINE void accumulate(const float* HWY_RESTRICT a, const VF* HWY_RESTRICT b, VF* HWY_RESTRICT part,
                           std::index_sequence<kRow...>) {
  (accumulate_row(hn::Set(DF(), a[kRow * kDepth]), b, part + kRow * kVectors, std::make_index_sequence<kVectors>()),
   ...);
}

template <size_t... kIndex>
HWY_INLINE void clear(VF* part, std::index_sequence<kIndex...>) {
  ((part[kIndex] = hn::Zero(DF())), ...);
}

template <size_t... kVector>
HWY_INLINE void promote_row(const VF* HWY_RESTRICT part, VF scale, float* HWY_RESTRICT sums,
                            std::index_sequence<kVector...>) {
  (hn::Store(fused_multiply_add(part[kVector], scale, hn::Load(DF(), sums + kVector * kLanes)), DF(),
             sums + kVector * kLanes),
   ...);
}

template <size_t kVectors, size_t... kRow>
HWY_INLINE void promote(const Tile& tile, const VF* HWY_RESTRICT part, std::index_sequence<kRow...>) {
  (promote_row(part + kRow * kVectors,
               hn::Set(DF(), tile.a_scales[static_cast<int64_t>(kRow) * tile.a_scale_row_stride] * tile.b_scale),
               tile.sums + kRow * kSumsStride, std::make_index_sequence<kVectors>()),
   ...);
}

template <size_t kRows, size_t kVectors>
HWY_NOINLINE void run_tile(const Tile& tile) {
  constexpr auto kRowSequence = std::make_index_sequence<kRows>();
  VF part[kRows * kVectors];
  clear(part, std::make_index_sequence<kRows * kVectors>());
  const float* HWY_RESTRICT strips = tile.strips;
  for (size_t chunk = 0; chunk < tile.depth; chunk += 4 * kLanes) {
    const float* HWY_RESTRICT a = tile.a + chunk;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      for (size_t byte = 0; byte < 4; ++byte) {
        VF b[kVectors];
        load_columns(strips, b, std::make_index_sequence<kVectors>());
        accumulate<kVectors>(a + byte * kLanes + lane, b, part, kRowSequence);
        strips += kPairColumns;
      }
    }
  }
  promote<kVectors>(tile, part, kRowSequence);
}

using TileKernel = void (*)(const Tile&);

template <size_t kVectors, size_t... kRow>
constexpr TileKernel pick_kernel(size_t rows, std::index_sequence<kRow...>) {
  constexpr TileKernel kKernels[] = {&run_tile<kRow + 1, kVectors>...};
  return kKernels[rows - 1];
}

template <size_t kVectors>
TileKernel tile_kernel_of_width(size_t rows) {
  return pick_kernel<kVectors>(rows, std::make_index_sequence<kMaxAccumulators / kVectors>());
}

TileKernel tile_kernel(size_t rows, size_t vectors) {
  if (vectors == 8) return tile_kernel_of_width<8>(rows);
  if (vectors == 4) return tile_kernel_of_width<4>(rows);
  return tile_kernel_of_width<2>(rows);
}

/// The widest tile that leaves the accumulators of `rows` rows in registers and the strips within `vectors_left`.
size_t tile_vectors(size_t rows, size_t vectors_left) {
  size_t vectors = 2;
  while (vectors < 8 && rows * vectors * 2 <= kMaxAccumulators && vectors * 2 <= vectors_left) vectors *= 2;
  return vectors;
}

void multiply_k_block(const GemmBlock& block, size_t k_block, size_t depth, const float* a_panel, const float* b_panel,
                      float* sums) {
  const size_t num_rows = static_cast<size_t>(block.num_rows);
  const size_t num_columns = static_cast<size_t>(block.num_columns);
  const size_t num_vectors = hwy::RoundUpTo(num_columns, kPairColumns) / kLanes;
  assert(num_rows > 0);
  // Tiles of nearly equal height: a short last tile would leave the multipliers waiting on few accumulators.
  const size_t num_row_tiles = hwy::DivCeil(num_rows, kMaxTileRows);
  const size_t short_rows = num_rows / num_row_tiles;
  const size_t num_tall = num_rows % num_row_tiles;

  Tile tile{};
  tile.depth = depth;
  tile.a_scale_row_stride = block.a_scale_row_stride;
  tile.b_scale = block.b_scales[static_cast<int64_t>(k_block) * block.b_scale_group_stride];
  const float* a_scales = block.a_scales + static_cast<int64_t>(k_block) * block.a_scale_group_stride;

  size_t vectors = 0;
  for (size_t vector = 0; vector < num_vectors; vector += vectors) {
    vectors = tile_vectors(num_tall > 0 ? short_rows + 1 : short_rows, num_vectors - vector);
    const size_t column = vector * kLanes;
    tile.strips = b_panel + vector / 2 * kStripFloats;
    size_t row = 0;
    for (size_t t = 0; t < num_row_tiles; ++t) {
      const size_t rows = short_rows + (t < num_tall ? 1 : 0);
      tile.a = a_panel + row * kDepth;
      tile.a_scales = a_scales + static_cast<int64_t>(row) * block.a_scale_row_stride;
      tile.sums = sums + row * kSumsStride + column;
      tile_kernel(rows, vectors)(tile);
      row += rows;
    }
  }
}

/// The columns' codes of one K block as FP32 strips. Columns beyond `num_columns` repeat the last one.
void decode_weights(const GemmBlock& block, size_t k_block, size_t depth, float* panel) {
  const size_t num_columns = static_cast<size_t>(block.num_columns);
  const size_t row_bytes = static_cast<size_t>(block.b_row_stride);
  const size_t k = static_cast<size_t>(block.k);
  const uint8_t* codes = block.b_codes + k_block * kDepth;
  const size_t next_depth = std::min(kDepth, k - std::min(k, (k_block + 1) * kDepth));
  for (size_t column = 0; column < num_columns; column += kPairColumns) {
    float* strip = panel + column / kPairColumns * kStripFloats;
    for (size_t half = 0; half < 2; ++half) {
      const uint8_t* rows[kLanes];
      for (size_t i = 0; i < kLanes; ++i) {
        const size_t c = std::min(column + half * kLanes + i, num_columns - 1);
        rows[i] = codes + c * row_bytes;
        for (size_t ahead = 0; ahead < next_depth; ahead += 64) __builtin_prefetch(rows[i] + kDepth + ahead, 0, 2);
      }
      for (size_t i = 0; i < depth; i += 16) {
        decode_16_deep(rows, i, strip + i * kPairColumns + half * kLanes, kPairColumns);
      }
    }
  }
}

void gemm_fp8_block(const GemmBlock& block) {
  const size_t num_rows = static_cast<size_t>(block.num_rows);
  const size_t k = static_cast<size_t>(block.k);
  float* b_panel = static_cast<float*>(block.scratch);
  float* a_panel = b_panel + kPanelFloats;
  float* sums = a_panel + num_rows * kDepth;
  std::fill(sums, sums + num_rows * kSumsStride, 0.0f);
  for (size_t k_block = 0; k_block * kDepth < k; ++k_block) {
    const size_t depth = std::min(kDepth, k - k_block * kDepth);
    for (size_t row = 0; row < num_rows; ++row) {
      decode_row(block.a_codes + static_cast<int64_t>(row) * block.a_row_stride + k_block * kDepth, depth,
                 a_panel + row * kDepth);
    }
    decode_weights(block, k_block, depth, b_panel);
    multiply_k_block(block, k_block, depth, a_panel, b_panel, sums);
  }
  for (size_t row = 0; row < num_rows; ++row) {
    std::copy_n(sums + row * kSumsStride, block.num_columns,
                block.sums + static_cast<int64_t>(row) * block.sums_row_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace megamoe::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megamoe::cpu {

size_t gemm_scratch_bytes(int64_t max_rows) {
  // The weights' panel, then per row its activations and its sums.
  return sizeof(float) *
         static_cast<size_t>(kScaleGroup * kMaxGemmColumns + max_rows * (kScaleGroup + kMaxGemmColumns));
}

GemmKernel gemm_kernel(SimdLevel level) {
  switch (level) {
    case SimdLevel::kScalar:
      return &N_EMU128::gemm_fp8_block;
#if HWY_TARGETS & HWY_SSE4
    case SimdLevel::kSse4:
      return &N_SSE4::gemm_fp8_block;
#endif
#if HWY_TARGETS & HWY_AVX2
    case SimdLevel::kAvx2:
      return &N_AVX2::gemm_fp8_block;
#endif
#if HWY_TARGETS & HWY_AVX3
    case SimdLevel::kAvx512:
      return &N_AVX3::gemm_fp8_block;
#endif
    default:
      return nullptr;
  }
}

}  // namespace megamoe::cpu
#endif  // HWY_ONCE
