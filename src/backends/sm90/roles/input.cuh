// The first task of all warps: make this rank's tokens readable for every owner, quantised or copied into the
// workspace.
#pragma once

#include "backends/sm90/roles/dispatch.cuh"
#include "core/formats/bf16.h"
#include "core/quantize.h"

namespace megamoe::sm90 {

/// Quantises one BF16 row: 16 lanes a group of 128 columns, 8 columns a lane.
template <class Spec>
__device__ __forceinline__ void quantize_row(Context<Spec>& c, uint32_t token) {
  const protocol::RankView& view = c.view();
  const uint32_t hidden = view.spec.shape.hidden, groups = view.spec.hidden_groups();
  const uint16_t* from = static_cast<const uint16_t*>(c.args.tensors.hidden) + token * c.args.tensors.hidden_row_stride;
  uint8_t* codes = c.own(c.layout().input_codes) + uint64_t{token} * hidden;
  float* scales = c.own(c.layout().input_scales) + uint64_t{token} * groups;
  constexpr uint32_t kInFlight = 4;
  for (uint32_t base = c.lane() * 8; base < core::align_up(hidden, 256u); base += kInFlight * 256) {
    uint4 raw[kInFlight];
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      const uint32_t column = base + i * 256;
      raw[i] = column < hidden ? __ldg(reinterpret_cast<const uint4*>(from + column)) : uint4{};
    }
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      const uint32_t column = base + i * 256, words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
      float x[8], amax = 0.0f;
#pragma unroll
      for (uint32_t j = 0; j < 8; ++j) {
        x[j] = __uint_as_float(j % 2 == 0 ? words[j / 2] << 16 : words[j / 2] & 0xffff0000u);
        amax = fmaxf(amax, fabsf(x[j]));
      }
#pragma unroll
      for (uint32_t step = 1; step < 16; step *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, step));
      if (column >= hidden) continue;
      const float scale = core::group_scale(amax), inverse = core::group_inverse(scale);
      uint32_t packed[2];
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j)
        packed[j] = ptx::e4m3_pair(__fmul_rn(x[4 * j], inverse), __fmul_rn(x[4 * j + 1], inverse)) |
                    uint32_t{ptx::e4m3_pair(__fmul_rn(x[4 * j + 2], inverse), __fmul_rn(x[4 * j + 3], inverse))} << 16;
      *reinterpret_cast<uint2*>(codes + column) = {packed[0], packed[1]};
      if (c.lane() % 16 == 0) scales[column / 128] = scale;
    }
  }
}

template <class Spec>
__device__ __forceinline__ void copy_row(Context<Spec>& c, uint32_t token) {
  const protocol::RankView& view = c.view();
  const CallTensors& t = c.args.tensors;
  const uint32_t hidden = view.spec.shape.hidden, groups = view.spec.hidden_groups();
  const uint8_t* from = static_cast<const uint8_t*>(t.hidden) + token * t.hidden_row_stride;
  uint8_t* codes = c.own(c.layout().input_codes) + uint64_t{token} * hidden;
  for (uint32_t column = c.lane() * 16; column < hidden; column += 512)
    *reinterpret_cast<uint4*>(codes + column) = __ldg(reinterpret_cast<const uint4*>(from + column));
  float* scales = c.own(c.layout().input_scales) + uint64_t{token} * groups;
  const TokenRows rows{from, 0, t.scales, t.scale_row_stride, t.scale_group_stride, t.scales_are_ue8m0};
  for (uint32_t group = c.lane(); group < groups; group += 32) scales[group] = rows.scale(token, group);
}

/// Asks for what the call reads of the caller's memory after the plan: by then weights fill the queue to memory, and a
/// token row that lies there would come 3 us later. Only as many tokens as the L2 can keep meanwhile.
template <class Spec>
__device__ __forceinline__ void prefetch_tokens(Context<Spec>& c) {
  constexpr uint32_t kMaxTokens = 2048, kLineBytes = 128;
  const CallTensors& t = c.args.tensors;
  if (t.num_tokens > kMaxTokens) return;
  const uint32_t warps = blockDim.x / 32, lane = c.lane(), groups = c.view().spec.hidden_groups();
  // The last CTAs first: the first ones sort.
  const uint32_t first = (gridDim.x - 1 - blockIdx.x) * warps + c.warp();
#pragma unroll 1
  for (uint32_t token = first; token < t.num_tokens; token += gridDim.x * warps) {
    if (lane == 0) ptx::prefetch_l2(t.topk_weights + token * t.weight_token_stride);
    if (t.source != TokenSource::kReadInPlace) continue;
    const TokenRows rows = TokenRows::of(c, c.view().rank);
    const uint32_t scale_bytes = t.scales_are_ue8m0 ? 1 : 4;
#pragma unroll 1
    for (uint32_t group = lane; group < groups; group += 32) {
      ptx::prefetch_l2(rows.codes + token * rows.row_stride + group * kLineBytes);
      ptx::prefetch_l2(static_cast<const uint8_t*>(rows.scales) +
                       (token * rows.scale_row_stride + group * rows.scale_group_stride) * scale_bytes);
    }
  }
}

/// Input blocks are dealt to the CTAs in turn, to the first CTA last, since it routes; the warps of a CTA share a
/// block's tokens. Order: input_full is released at system scope by the last warp; pairs with pull_rows of every owner.
template <class Spec>
__device__ __forceinline__ void fill_input(Context<Spec>& c) {
  constexpr uint32_t kTokens = protocol::WorkspaceSpec::kInputBlockTokens;
  constexpr uint32_t kWarps = Spec::kSpec.plan.num_warps();
  const CallTensors& t = c.args.tensors;
  if (t.source == TokenSource::kReadInPlace) return;
  const uint32_t num_blocks = core::ceil_div(t.num_tokens, kTokens);
  for (uint32_t block = gridDim.x - 1 - blockIdx.x; block < num_blocks; block += gridDim.x) {
    const uint32_t end = core::min((block + 1) * kTokens, t.num_tokens);
    for (uint32_t token = block * kTokens + c.warp(); token < end; token += kWarps) {
      if (t.source == TokenSource::kQuantizeBf16) {
        quantize_row(c, token);
      } else {
        copy_row(c, token);
      }
    }
    ptx::proxy_fence();  // pulled by bulk copies
    c.chaos();
    __syncwarp();
    if (c.lane() == 0 && ptx::count_acq_rel_cta(ptx::shared_address(&c.shared.warps_filled), kWarps - 1) == kWarps - 1)
      ptx::store_release_sys(c.own(c.layout().input_full) + block, c.epoch());
    // Or a warp could be counted for its next block before others are for this one.
    if (block + gridDim.x < num_blocks) __syncthreads();
  }
}

}  // namespace megamoe::sm90
