// The oracle: what one MoE layer must compute. Plain loops in FP64 with the rounding points of docs/numerics.md; read
// it first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "megamoe/shape.h"

namespace megamoe::reference {

/// The weights of one expert: E4M3 codes, and one FP32 scale per block of 128x128 (value = code * scale). Dense,
/// row-major.
struct ExpertWeights {
  const uint8_t* w13 = nullptr;       ///< [2*I][H]: I gate rows, then I up rows.
  const float* gate_scale = nullptr;  ///< [ceil(I/128)][H/128]
  const float* up_scale = nullptr;    ///< [ceil(I/128)][H/128]
  const uint8_t* w2 = nullptr;        ///< [H][I]
  const float* w2_scale = nullptr;    ///< [H/128][ceil(I/128)]
};

struct Layer {
  MoeShape shape;
  std::optional<float> clamp;                   ///< Absent or +infinity: no clamp.
  std::vector<ExpertWeights> experts;           ///< One per global expert; those that no token names may be empty.
  std::vector<ExpertWeights> shared_experts{};  ///< Visited by every token after its K slots.
  float routed_scaling = 1.0f;                  ///< Multiplies top-k weights, one FP32 product.
};

/// What a call adds to a layer and a rank's tokens.
struct CallOptions {
  uint32_t rank = 0;                      ///< Whose tokens they are.
  const float* shared_weights = nullptr;  ///< [T][shared experts]; null: 1.
  /// [logical experts][copies]: ids name logical experts, whose copies end at the first -1. Empty: ids name experts.
  std::vector<std::vector<int32_t>> expert_map{};
  std::vector<bool> expert_is_absent{};  ///< By physical expert; empty: none is.
  bool renormalize_weights = false;
};

/// Tokens either as BF16 (quantised here) or as E4M3 codes with scales.
struct Input {
  uint64_t num_tokens = 0;
  const uint16_t* hidden_bf16 = nullptr;  ///< [T][H]; null where codes are given.
  const uint8_t* hidden_codes = nullptr;  ///< [T][H]
  const float* hidden_scales = nullptr;   ///< [T][H/128]
  const int64_t* topk_ids = nullptr;      ///< [T][K], -1 = masked; any other id is below E (the caller has checked).
  const float* topk_weights = nullptr;    ///< [T][K]; that of a masked slot is never read.
  CallOptions options{};
};

enum class Mode {
  kContract,   ///< Every rounding point of the contract.
  kNoRequant,  ///< The same codes of tokens and weights, but no rounding after them: what quantising the intermediate
               ///< costs.
};

/// One row as E4M3 codes with one scale per 128 columns; the last group may be shorter.
struct QuantizedRow {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

// The stages of one (token, slot). Each takes what the stage before it returns, from here or from a backend under test.

/// Codes and scales of `values[0 .. columns)`, which are FP32 numbers.
QuantizedRow quantize_row(const double* values, uint32_t columns);
/// Codes and scales with which `token` enters the first GEMM.
QuantizedRow input_row(const Layer& layer, const Input& input, uint64_t token);
/// The first GEMM: `gate[0 .. I)` and `up[0 .. I)`.
void gate_up_row(const Layer& layer, uint32_t expert, const QuantizedRow& x, double* gate, double* up);
/// (silu(min(gate, clamp)) * clamp(up, -clamp, clamp)) * topk_weight.
double swiglu(double gate, double up, std::optional<float> clamp, double topk_weight);
/// First GEMM, SwiGLU and requantisation: codes and scales with which the row enters the second GEMM.
QuantizedRow intermediate_row(const Layer& layer, uint32_t expert, const QuantizedRow& x, float topk_weight);
/// The second GEMM: `row[0 .. H)` before it is rounded to BF16.
void down_row(const Layer& layer, uint32_t expert, const QuantizedRow& h, double* row);
/// Sums `num_rows` BF16 rows of `hidden` columns in the given order: FP32 additions from +0, one rounding to BF16.
void combine_rows(const uint16_t* const* rows, uint32_t num_rows, uint32_t hidden, uint16_t* out);

/// Where a slot goes, and with which weight.
struct SlotChoice {
  int64_t expert = -1;  ///< Physical; those from E on are the shared ones; -1: masked.
  float weight = 0;
};
/// A token's K slots and its shared experts, in the order of the sum: ids through the map, absent experts masked,
/// weights made up for what is masked and scaled.
std::vector<SlotChoice> slot_choices(const Layer& layer, const Input& input, uint64_t token);

/// All stages of one slot: `row[0 .. H)` before it is rounded to BF16. The slot must not be masked.
void slot_row(const Layer& layer, const Input& input, uint64_t token, uint32_t slot, Mode mode, double* row);

/// The layer's output for one token, `out[0 .. H)`. In kContract every value is a BF16 number. One call costs about
/// 3 * H * I * K multiply-adds on one core; calls for different tokens may run on different threads.
void forward_row(const Layer& layer, const Input& input, uint64_t token, Mode mode, double* out);

}  // namespace megamoe::reference
