// The MoE layer in plain loops. H hidden, I intermediate, K slots per token; blocks of 128 share a scale.
#include "core/reference/layer.h"

#include <algorithm>
#include <cmath>

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

void gate_up(const Layer& layer, uint32_t expert, const GemmRow& x, double* gate, double* up) {
  const uint64_t hidden = layer.shape.hidden;
  const uint64_t intermediate = layer.shape.intermediate;
  const uint64_t k_blocks = hidden / kBlock;
  const ExpertWeights& weights = layer.experts[expert];
  for (uint64_t i = 0; i < intermediate; ++i) {
    gate[i] = dot(x, weights.w13 + i * hidden, weights.gate_scale + i / kBlock * k_blocks);
    up[i] = dot(x, weights.w13 + (intermediate + i) * hidden, weights.up_scale + i / kBlock * k_blocks);
  }
}

void down(const Layer& layer, uint32_t expert, const GemmRow& h, double* row) {
  const uint64_t intermediate = layer.shape.intermediate;
  const uint64_t k_blocks = num_blocks(layer.shape.intermediate);
  const ExpertWeights& weights = layer.experts[expert];
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

// Each step is the FP32 operation of the contract: FP64 holds the exact product of two FP32 numbers, and rounding an
// FP64 quotient to FP32 gives the correctly rounded FP32 quotient.
QuantizedRow quantize_row(const double* values, uint32_t columns) {
  QuantizedRow row;
  row.codes.resize(columns);
  for (uint32_t begin = 0; begin < columns; begin += kBlock) {
    const uint32_t end = std::min(columns, begin + kBlock);
    double amax = 0.0;
    for (uint32_t k = begin; k < end; ++k) {
      if (std::fabs(values[k]) > amax) amax = std::fabs(values[k]);  // false for NaN, which the maximum ignores
    }
    const double floored = std::max(amax, static_cast<double>(1e-10f));
    const auto scale = static_cast<float>(floored / 448.0);
    const auto inverse = static_cast<float>(1.0 / scale);
    for (uint32_t k = begin; k < end; ++k) row.codes[k] = e4m3_nearest(static_cast<float>(values[k] * inverse));
    row.scales.push_back(scale);
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
  if (clamp) {
    const double limit = *clamp;
    if (gate > limit) gate = limit;
    if (up > limit) up = limit;
    if (up < -limit) up = -limit;
  }
  const double silu = gate / (1.0 + std::exp(-gate));
  return silu * up * topk_weight;
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

void slot_row(const Layer& layer, const Input& input, uint64_t token, uint32_t slot, Mode mode, double* row) {
  const uint64_t slot_idx = token * layer.shape.top_k + slot;
  const auto expert = static_cast<uint32_t>(input.topk_ids[slot_idx]);
  const float topk_weight = input.topk_weights[slot_idx];
  const QuantizedRow x = input_row(layer, input, token);
  if (mode == Mode::kNoRequant) {
    down(layer, expert, unscaled(activated(layer, expert, x, topk_weight)), row);
  } else {
    down_row(layer, expert, intermediate_row(layer, expert, x, topk_weight), row);
  }
}

void forward_row(const Layer& layer, const Input& input, uint64_t token, Mode mode, double* out) {
  const uint32_t hidden = layer.shape.hidden;
  std::fill(out, out + hidden, 0.0);
  std::vector<double> row(hidden);
  for (uint32_t slot = 0; slot < layer.shape.top_k; ++slot) {
    if (input.topk_ids[token * layer.shape.top_k + slot] == -1) continue;
    slot_row(layer, input, token, slot, mode, row.data());
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
