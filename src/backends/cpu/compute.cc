// The arithmetic of one CPU worker.
#include "backends/cpu/compute.h"

#include <cstring>

#include "backends/cpu/kernels/kernels.h"
#include "core/formats/ue8m0.h"
#include "core/scale_values.h"

namespace megamoe::cpu {
namespace {

/// One GEMM over weight rows that may lie in runs.
void run_gemm(GemmBlock gemm, const WeightRows& rows, uint32_t num_columns) {
  gemm.b_row_stride = rows.row_stride;
  for (uint32_t first = 0; first < num_columns; first += rows.run_rows) {
    GemmBlock part = gemm;
    part.b_codes = rows.codes + (first / rows.run_rows) * rows.run_stride;
    part.num_columns = std::min(rows.run_rows, num_columns - first);
    part.sums = gemm.sums + first;
    gemm_fp8_block(part);
  }
}

}  // namespace

Compute::Compute(const protocol::RankView& view) : view_(&view) {
  const uint32_t room_m = view.spec.room_m();
  const size_t scratch_bytes = core::align_up(gemm_scratch_bytes(room_m), kScratchAlignment);
  scratch_.reset(std::aligned_alloc(kScratchAlignment, scratch_bytes));
  gate_.resize(size_t{room_m} * kScaleGroup);
  up_.resize(size_t{room_m} * kScaleGroup);
  row_weights_.resize(room_m);
  rows_.resize(size_t{room_m} * kScaleGroup);
}

void Compute::fill_input(const CallInputs& inputs, uint32_t first_token, uint32_t num_tokens) {
  const uint32_t hidden = view_->spec.shape.hidden, groups = view_->spec.hidden_groups();
  const TensorView& x = inputs.args->hidden_states;
  uint8_t* codes = view_->layout.input_codes.in(view_->own()) + uint64_t{first_token} * hidden;
  float* scales = view_->layout.input_scales.in(view_->own()) + uint64_t{first_token} * groups;
  if (x.dtype == DType::kBFloat16) {
    const auto* rows = static_cast<const uint16_t*>(x.data) + int64_t{first_token} * x.strides[0];
    quantize_rows_bf16(rows, x.strides[0], num_tokens, hidden, codes, hidden, scales, groups);
    return;
  }
  if (x.data == view_->layout.input_codes.in(view_->own())) return;  // the layer's own views, written by the caller
  const TensorView& given = inputs.args->hidden_states_scale;
  for (uint32_t i = 0; i < num_tokens; ++i) {
    const int64_t token = int64_t{first_token} + i;
    std::memcpy(codes + uint64_t{i} * hidden, static_cast<const uint8_t*>(x.data) + token * x.strides[0], hidden);
    for (uint32_t group = 0; group < groups; ++group)
      scales[uint64_t{i} * groups + group] = core::scale_at(given, token * given.strides[0] + group * given.strides[1]);
  }
}

void Compute::token_gemm(const WeightTable& weights, const protocol::Tile& tile, uint32_t num_rows, core::W13Half half,
                         float* sums) {
  const auto& spec = view_->spec;
  const uint64_t ring_slot = view_->token_ring().slot(tile.block);
  const uint32_t first_row = tile.n * kScaleGroup;
  const uint32_t columns = core::scale_group_columns(spec.shape.intermediate, tile.n);
  GemmBlock gemm;
  gemm.a_codes = view_->layout.pool_codes.in(view_->own()) + ring_slot * spec.room_m() * spec.shape.hidden;
  gemm.a_row_stride = spec.shape.hidden;
  gemm.a_scales = view_->layout.pool_scales.in(view_->own()) + ring_slot * spec.hidden_groups() * spec.room_m();
  gemm.a_scale_row_stride = 1;
  gemm.a_scale_group_stride = spec.room_m();
  gemm.b_scales = weights.w13_scales(tile.local_expert, half, first_row);
  gemm.num_rows = num_rows;
  gemm.k = spec.shape.hidden;
  gemm.sums = sums;
  gemm.sums_row_stride = kScaleGroup;
  gemm.scratch = scratch_.get();
  run_gemm(gemm, weights.w13_rows(tile.local_expert, half, first_row), columns);
}

void Compute::l1_tile(const CallInputs& inputs, const protocol::Tile& tile, uint32_t num_rows) {
  const auto& spec = view_->spec;
  token_gemm(*inputs.weights, tile, num_rows, core::W13Half::kGate, gate_.data());
  token_gemm(*inputs.weights, tile, num_rows, core::W13Half::kUp, up_.data());
  const protocol::RowMeta* meta = view_->layout.row_meta.in(view_->own()) + uint64_t{tile.block} * spec.room_m();
  for (uint32_t row = 0; row < num_rows; ++row) row_weights_[row] = meta[row].weight;
  const uint64_t ring_slot = view_->act_ring().slot(tile.block);
  SwigluBlock swiglu;
  swiglu.gate = gate_.data();
  swiglu.gate_row_stride = kScaleGroup;
  swiglu.up = up_.data();
  swiglu.up_row_stride = kScaleGroup;
  swiglu.row_weights = row_weights_.data();
  swiglu.clamp = inputs.clamp;
  swiglu.num_rows = num_rows;
  swiglu.width = core::scale_group_columns(spec.shape.intermediate, tile.n);
  swiglu.codes = view_->layout.act_codes.in(view_->own()) + ring_slot * spec.room_m() * spec.shape.intermediate +
                 uint64_t{tile.n} * kScaleGroup;
  swiglu.codes_row_stride = spec.shape.intermediate;
  swiglu.scales =
      view_->layout.act_scales.in(view_->own()) + (ring_slot * spec.intermediate_groups() + tile.n) * spec.room_m();
  swiglu_quantize_rows(swiglu);
}

void Compute::l2_tile(const CallInputs& inputs, const protocol::Tile& tile, uint32_t num_rows) {
  const auto& spec = view_->spec;
  const uint64_t ring_slot = view_->act_ring().slot(tile.block);
  const uint32_t first_column = tile.n * kScaleGroup;
  GemmBlock gemm;
  gemm.a_codes = view_->layout.act_codes.in(view_->own()) + ring_slot * spec.room_m() * spec.shape.intermediate;
  gemm.a_row_stride = spec.shape.intermediate;
  gemm.a_scales = view_->layout.act_scales.in(view_->own()) + ring_slot * spec.intermediate_groups() * spec.room_m();
  gemm.a_scale_row_stride = 1;
  gemm.a_scale_group_stride = spec.room_m();
  gemm.b_scales = inputs.weights->w2_scales(tile.local_expert, first_column);
  gemm.num_rows = num_rows;
  gemm.k = spec.shape.intermediate;
  gemm.sums = gate_.data();
  gemm.sums_row_stride = kScaleGroup;
  gemm.scratch = scratch_.get();
  run_gemm(gemm, inputs.weights->w2_rows(tile.local_expert, first_column), kScaleGroup);
  float_rows_to_bf16(gate_.data(), kScaleGroup, num_rows, kScaleGroup, rows_.data(), kScaleGroup);
  const protocol::RowMeta* meta = view_->layout.row_meta.in(view_->own()) + uint64_t{tile.block} * spec.room_m();
  for (uint32_t row = 0; row < num_rows; ++row) {
    const uint64_t token = meta[row].token_slot / spec.shape.top_k, slot = meta[row].token_slot % spec.shape.top_k;
    uint16_t* to = view_->layout.combine_rows.in(view_->base(meta[row].source_rank)) +
                   (slot * spec.max_tokens + token) * spec.shape.hidden + first_column;
    std::memcpy(to, rows_.data() + uint64_t{row} * kScaleGroup, kScaleGroup * sizeof(uint16_t));
  }
}

void Compute::combine(const CallInputs& inputs, uint32_t token) {
  const auto& spec = view_->spec;
  const uint16_t* rows[kMaxTopK];
  uint32_t num_rows = 0;
  for (uint32_t slot = 0; slot < spec.shape.top_k; ++slot) {
    if (inputs.slot_experts[uint64_t{token} * spec.shape.top_k + slot] < 0) continue;
    rows[num_rows++] =
        view_->layout.combine_rows.in(view_->own()) + (uint64_t{slot} * spec.max_tokens + token) * spec.shape.hidden;
  }
  const TensorView& y = inputs.args->output;
  combine_rows(rows, num_rows, spec.shape.hidden, static_cast<uint16_t*>(y.data) + int64_t{token} * y.strides[0]);
}

}  // namespace megamoe::cpu
