// The MoE layer in plain loops. H hidden, I intermediate, K slots per token; blocks of 128 share a scale.
#include "core/reference/layer.h"

#include <algorithm>
#include <limits>

#include "core/reference/formats.h"

namespace megamoe::reference {
namespace {

constexpr uint32_t kBlock = 128;

uint32_t num_blocks(uint32_t columns) { return (columns + kBlock - 1) / kBlock; }

/// A row ready for a GEMM: value k is numbers[k] * scales[k / 128].
struct GemmRow {
  std::vector<double> numbers;
  std::vector<double> scales;
};

GemmRow decode(const QuantizedRow& row) {
  GemmRow decoded;
  decoded.numbers.reserve(row.codes.size());
  for (const uint8_t code : row.codes) decoded.numbers.push_back(e4m3_values()[code]);
  decoded.scales.assign(row.scales.begin(), row.scales.end());
  return decoded;
}

GemmRow unscaled(std::vector<double> values) {
  const auto columns = static_cast<uint32_t>(values.size());
  return {std::move(values), std::vector<double>(num_blocks(columns), 1.0)};
}

/// sum over k of x[k] * weight[k]. Of two E4M3 rows, a block's sum is exact in FP64 whatever the order of its
/// additions: the products are multiples of 2^-18 and 128 of them stay below 2^25. So four running sums are as good as
/// one, and faster.
double dot(const GemmRow& x, const uint8_t* weight_codes, const float* weight_scales) {
  const double* values = e4m3_values().data();
  const auto depth = static_cast<uint32_t>(x.numbers.size());
  double sum = 0.0;
  for (uint32_t block = 0; block < num_blocks(depth); ++block) {
    const uint32_t begin = block * kBlock;
    const uint32_t end = std::min(depth, begin + kBlock);
    double part[4] = {};
    for (uint32_t k = begin; k < end; k += 4) {  // depth is a multiple of 64
      for (uint32_t lane = 0; lane < 4; ++lane) part[lane] += x.numbers[k + lane] * values[weight_codes[k + lane]];
    }
    sum += ((part[0] + part[1]) + (part[2] + part[3])) * (x.scales[block] * weight_scales[block]);
  }
  return sum;
}

const ExpertWeights& expert_weights(const Layer& layer, uint32_t expert) {
  const uint32_t num_experts = layer.shape.num_experts;
  return expert < num_experts ? layer.experts[expert] : layer.shared_experts[expert - num_experts];
}

/// The physical expert that an id of the caller stands for; -1: none.
int64_t physical_expert(const CallOptions& options, uint64_t token, int64_t id) {
  int64_t expert = id;
  if (!options.expert_map.empty() && id >= 0) {
    std::vector<int32_t> copies;
    for (const int32_t copy : options.expert_map[static_cast<size_t>(id)]) {
      if (copy == -1) break;
      copies.push_back(copy);
    }
    expert = copies.empty() ? -1 : copies[(token + options.rank) % copies.size()];
  }
  if (expert >= 0 && !options.expert_is_absent.empty() && options.expert_is_absent[static_cast<size_t>(expert)])
    return -1;
  return expert;
}

void gate_up(const Layer& layer, uint32_t expert, const GemmRow& x, double* gate, double* up) {
  const uint64_t hidden = layer.shape.hidden;
  const uint64_t intermediate = layer.shape.intermediate;
  const uint64_t k_blocks = hidden / kBlock;
  const ExpertWeights& weights = expert_weights(layer, expert);
  for (uint64_t i = 0; i < intermediate; ++i) {
    gate[i] = dot(x, weights.w13 + i * hidden, weights.gate_scale + i / kBlock * k_blocks);
    up[i] = dot(x, weights.w13 + (intermediate + i) * hidden, weights.up_scale + i / kBlock * k_blocks);
  }
}

void down(const Layer& layer, uint32_t expert, const GemmRow& h, double* row) {
  const uint64_t intermediate = layer.shape.intermediate;
  const uint64_t k_blocks = num_blocks(layer.shape.intermediate);
  const ExpertWeights& weights = expert_weights(layer, expert);
  for (uint64_t column = 0; column < layer.shape.hidden; ++column) {
    row[column] = dot(h, weights.w2 + column * intermediate, weights.w2_scale + column / kBlock * k_blocks);
  }
}

/// The intermediate row before any rounding.
std::vector<double> activated(const Layer& layer, uint32_t expert, const QuantizedRow& x, float topk_weight) {
  std::vector<double> gate(layer.shape.intermediate);
  std::vector<double> up(layer.shape.intermediate);
  gate_up(layer, expert, decode(x), gate.data(), up.data());
  std::vector<double> h(layer.shape.intermediate);
  for (size_t i = 0; i < h.size(); ++i) h[i] = swiglu(gate[i], up[i], layer.clamp, topk_weight);
  return h;
}

}  // namespace

QuantizedRow quantize_row(const double* values, uint32_t columns) {
  QuantizedRow row;
  row.codes.resize(columns);
  for (uint32_t begin = 0; begin < columns; begin += kBlock) {
    const uint32_t end = std::min(columns, begin + kBlock);
    const auto group = GroupScale::of(end - begin, [&](uint32_t k) { return values[begin + k]; });
    for (uint32_t k = begin; k < end; ++k) row.codes[k] = e4m3_nearest(group.scaled(values[k]));
    row.scales.push_back(group.scale);
  }
  return row;
}

QuantizedRow input_row(const Layer& layer, const Input& input, uint64_t token) {
  const uint32_t hidden = layer.shape.hidden;
  if (input.hidden_bf16 == nullptr) {
    const uint8_t* codes = input.hidden_codes + token * hidden;
    const float* scales = input.hidden_scales + token * num_blocks(hidden);
    return {{codes, codes + hidden}, {scales, scales + num_blocks(hidden)}};
  }
  std::vector<double> values(hidden);
  for (uint32_t k = 0; k < hidden; ++k) values[k] = bf16_value(input.hidden_bf16[token * hidden + k]);
  return quantize_row(values.data(), hidden);
}

void gate_up_row(const Layer& layer, uint32_t expert, const QuantizedRow& x, double* gate, double* up) {
  gate_up(layer, expert, decode(x), gate, up);
}

double swiglu(double gate, double up, std::optional<float> clamp, double topk_weight) {
  return swiglu_limited(gate, up, clamp.value_or(std::numeric_limits<float>::infinity()), topk_weight);
}

QuantizedRow intermediate_row(const Layer& layer, uint32_t expert, const QuantizedRow& x, float topk_weight) {
  std::vector<double> h = activated(layer, expert, x, topk_weight);
  for (double& value : h) value = static_cast<float>(value);
  return quantize_row(h.data(), layer.shape.intermediate);
}

void down_row(const Layer& layer, uint32_t expert, const QuantizedRow& h, double* row) {
  down(layer, expert, decode(h), row);
}

void combine_rows(const uint16_t* const* rows, uint32_t num_rows, uint32_t hidden, uint16_t* out) {
  for (uint32_t column = 0; column < hidden; ++column) {
    float sum = 0.0f;
    for (uint32_t r = 0; r < num_rows; ++r) sum = static_cast<float>(sum + bf16_value(rows[r][column]));
    out[column] = bf16_nearest(sum);
  }
}

// Sums and products are those of the contract: FP64 holds the exact sum or product of two FP32 numbers well enough that
// rounding it to FP32 is the FP32 operation.
std::vector<SlotChoice> slot_choices(const Layer& layer, const Input& input, uint64_t token) {
  const uint32_t top_k = layer.shape.top_k;
  const CallOptions& options = input.options;
  std::vector<SlotChoice> choices(top_k);
  double all = 0.0, left = 0.0;
  bool is_short = false;
  for (uint32_t slot = 0; slot < top_k; ++slot) {
    const int64_t id = input.topk_ids[token * top_k + slot];
    if (id == -1) continue;
    const float weight = input.topk_weights[token * top_k + slot];
    choices[slot] = {physical_expert(options, token, id), weight};
    all = static_cast<float>(all + weight);
    if (choices[slot].expert == -1) is_short = true;
    if (choices[slot].expert != -1) left = static_cast<float>(left + weight);
  }
  const bool makes_up = options.renormalize_weights && is_short && left != 0.0;
  const float factor = makes_up ? static_cast<float>(all / left) : 1.0f;
  for (SlotChoice& choice : choices) {
    choice.weight = static_cast<float>(double{choice.weight} * factor);
    choice.weight = static_cast<float>(double{choice.weight} * layer.routed_scaling);
  }
  const size_t num_shared = layer.shared_experts.size();
  for (size_t i = 0; i < num_shared; ++i)
    choices.push_back({static_cast<int64_t>(layer.shape.num_experts + i),
                       options.shared_weights == nullptr ? 1.0f : options.shared_weights[token * num_shared + i]});
  return choices;
}

namespace {

void choice_row(const Layer& layer, const Input& input, uint64_t token, const SlotChoice& choice, Mode mode,
                double* row) {
  const auto expert = static_cast<uint32_t>(choice.expert);
  const QuantizedRow x = input_row(layer, input, token);
  if (mode == Mode::kNoRequant) {
    down(layer, expert, unscaled(activated(layer, expert, x, choice.weight)), row);
  } else {
    down_row(layer, expert, intermediate_row(layer, expert, x, choice.weight), row);
  }
}

}  // namespace

void slot_row(const Layer& layer, const Input& input, uint64_t token, uint32_t slot, Mode mode, double* row) {
  choice_row(layer, input, token, slot_choices(layer, input, token)[slot], mode, row);
}

void forward_row(const Layer& layer, const Input& input, uint64_t token, Mode mode, double* out) {
  const uint32_t hidden = layer.shape.hidden;
  std::fill(out, out + hidden, 0.0);
  std::vector<double> row(hidden);
  for (const SlotChoice& choice : slot_choices(layer, input, token)) {
    if (choice.expert == -1) continue;
    choice_row(layer, input, token, choice, mode, row.data());
    for (uint32_t column = 0; column < hidden; ++column) {
      if (mode == Mode::kNoRequant) {
        out[column] += row[column];
      } else {
        out[column] = static_cast<float>(out[column] + bf16_value(bf16_nearest(row[column])));
      }
    }
  }
  if (mode == Mode::kContract) {
    for (uint32_t column = 0; column < hidden; ++column) out[column] = bf16_value(bf16_nearest(out[column]));
  }
}

}  // namespace megamoe::reference
