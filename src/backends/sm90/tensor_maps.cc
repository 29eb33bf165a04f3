// Every tensor map of a rank. All boxes are 128 bytes wide in K, with 128-byte swizzle: what the multiply reads.
#include "backends/sm90/tensor_maps.h"

#include <fmt/format.h>

#include <array>

#include "backends/sm90/driver.h"

namespace megamoe::sm90 {
namespace {

/// A map over bytes. `strides_bytes` starts with dimension 1; dimension 0 is dense.
template <size_t kDims>
struct ByteMap {
  void* base;
  std::array<cuuint64_t, kDims> extents;
  std::array<cuuint64_t, kDims - 1> strides_bytes;
  std::array<cuuint32_t, kDims> box;
  bool swizzled = true;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
};

template <size_t kDims>
Status encode(const char* name, const ByteMap<kDims>& m, CUtensorMap& map) {
  const EncodeTiled function = encode_tiled();
  if (function == nullptr)
    return {
        Code::kNotSupported,
        "sm90.tensor_map: cuTensorMapEncodeTiled must be offered by the driver, and it is not; install a driver for "
        "CUDA 12 or later"};
  std::array<cuuint32_t, kDims> steps;
  steps.fill(1);
  const CUresult result = function(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, kDims, m.base, m.extents.data(),
                                   m.strides_bytes.data(), m.box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   m.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE, m.promotion,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {Code::kInternal, fmt::format("sm90.tensor_map: the map of {} must be accepted by the driver, got CUresult {}",
                                       name, static_cast<int>(result))};
}

constexpr cuuint32_t kBoxK = 128;
/// Measured: 256 bytes are 1 to 2% slower where weights are streamed.
constexpr CUtensorMapL2promotion kWeightPromotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

}  // namespace

Status make_workspace_maps(const protocol::RankView& view, const protocol::KernelSpec& spec, TensorMaps& maps) {
  const protocol::WorkspaceSpec& w = view.spec;
  const cuuint64_t hidden = w.shape.hidden, intermediate = w.shape.intermediate;
  const cuuint64_t pool_rows = uint64_t{w.token_ring_blocks} * w.room_m();
  const cuuint64_t act_rows = uint64_t{w.act_ring_blocks} * w.room_m();
  void* pool = view.layout.pool_codes.in(view.own());
  void* acts = view.layout.act_codes.in(view.own());
  constexpr cuuint32_t kHalf = protocol::KernelSpec::kWarpgroupRows, kStoreRows = 16;
  const cuuint32_t store_columns = spec.warpgroup_n() / 2;
  MEGAMOE_RETURN_IF_ERROR(
      encode<2>("the token pool", {pool, {hidden, pool_rows}, {hidden}, {kBoxK, spec.block_m}}, maps.pool));
  MEGAMOE_RETURN_IF_ERROR(
      encode<2>("the token pool", {pool, {hidden, pool_rows}, {hidden}, {kBoxK, kHalf}}, maps.pool_half));
  MEGAMOE_RETURN_IF_ERROR(
      encode<2>("the activations", {acts, {intermediate, act_rows}, {intermediate}, {kBoxK, spec.block_m}}, maps.acts));
  MEGAMOE_RETURN_IF_ERROR(
      encode<2>("the activations", {acts, {intermediate, act_rows}, {intermediate}, {kBoxK, kHalf}}, maps.acts_half));
  if (spec.extra_m != 0) {
    MEGAMOE_RETURN_IF_ERROR(
        encode<2>("the token pool", {pool, {hidden, pool_rows}, {hidden}, {kBoxK, spec.extra_m}}, maps.pool_extra));
    MEGAMOE_RETURN_IF_ERROR(encode<2>(
        "the activations", {acts, {intermediate, act_rows}, {intermediate}, {kBoxK, spec.extra_m}}, maps.acts_extra));
  }
  return encode<2>("the stored activations",
                   {acts, {intermediate, act_rows}, {intermediate}, {store_columns, kStoreRows}, store_columns == 128},
                   maps.acts_store);
}

Status make_weight_maps(const protocol::RankView& view, const protocol::KernelSpec& spec, uint32_t num_experts,
                        const void* w13, const void* w2, W13Layout layout, CUtensorMap& w13_map, CUtensorMap& w2_map) {
  const cuuint64_t h = view.spec.shape.hidden, i = view.spec.shape.intermediate, experts = num_experts;
  // Dimensions (k, row of 8, half, group of 8 rows, expert): the box lays 8 rows of one half after 8 rows of the other.
  // Strides in bytes: from row to row of a half, from half to half, from 8 rows to the next 8 of a half.
  cuuint64_t row = h, half = i * h, group = 8 * h;
  if (layout == W13Layout::kInterleaved1) {
    row = 2 * h;
    half = h;
    group = 16 * h;
  } else if (layout == W13Layout::kInterleaved8) {
    half = 8 * h;
    group = 16 * h;
  }
  MEGAMOE_RETURN_IF_ERROR(encode<5>("w13",
                                    {const_cast<void*>(w13),
                                     {h, 8, 2, i / 8, experts},
                                     {row, half, group, 2 * i * h},
                                     {kBoxK, 8, 2, spec.tile_n / 16, 1},
                                     true,
                                     kWeightPromotion},
                                    w13_map));
  return encode<3>(
      "w2", {const_cast<void*>(w2), {i, h, experts}, {i, h * i}, {kBoxK, spec.tile_n, 1}, true, kWeightPromotion},
      w2_map);
}

}  // namespace megamoe::sm90
