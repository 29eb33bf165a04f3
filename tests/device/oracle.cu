// Plain kernels: one warp an output element. Sums of 128 products are exact in FP64 in any order, so lanes may share
// them.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/reference/formats.h"
#include "core/reference/formulas.h"
#include "device/oracle.h"

namespace megamoe::device_check {
namespace {

constexpr uint32_t kThreads = 256, kWarps = kThreads / 32, kOutputsPerWarp = 4;
constexpr uint32_t kBlockOutputs = kWarps * kOutputsPerWarp;

/// One (token, slot) under test.
struct Slot {
  uint32_t token;
  uint32_t slot;
  uint32_t expert;
  float weight;
  const uint8_t* codes;      ///< The device's own codes of the intermediate; null in judge_rows.
  const float* scales;       ///< The same rows' scales, one every `scale_stride`.
  const uint16_t* combined;  ///< The device's row of the second GEMM.
  uint32_t scale_stride;
};

/// Rows of codes with a scale per 128 columns.
struct Quantized {
  uint8_t* codes;
  float* scales;
};

struct Matrix {
  const uint8_t* codes;
  const float* scales;
};

/// E4M3 codes and scales of rows; one thread a group. `value(row, column)` gives FP32 numbers.
template <class Value>
__global__ void quantize_kernel(uint32_t num_rows, uint32_t columns, Value value, const double* table, Quantized to) {
  const uint32_t groups = (columns + 127) / 128;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < num_rows * groups; i += gridDim.x * blockDim.x) {
    const uint32_t row = i / groups, begin = i % groups * 128, count = min(128u, columns - begin);
    const auto group = reference::GroupScale::of(count, [&](uint32_t k) { return value(row, begin + k); });
    for (uint32_t k = 0; k < count; ++k)
      to.codes[uint64_t{row} * columns + begin + k] =
          reference::e4m3_nearest_of(table, group.scaled(value(row, begin + k)));
    to.scales[i] = group.scale;
  }
}

struct TokenValue {
  const uint16_t* hidden;
  const Slot* slots;
  uint32_t columns;
  __device__ double operator()(uint32_t row, uint32_t column) const {
    return reference::bf16_value(hidden[uint64_t{slots[row].token} * columns + column]);
  }
};
struct IntermediateValue {
  const double* values;
  uint32_t columns;
  __device__ double operator()(uint32_t row, uint32_t column) const { return values[uint64_t{row} * columns + column]; }
};

/// One lane's part of sum over k of x[k] * weight[k], scaled per block.
__device__ double lane_dot(const float* x, const float* x_scales, uint32_t x_scale_stride, const float* numbers,
                           const uint8_t* codes, const float* scales, uint32_t depth) {
  const uint32_t lane = threadIdx.x % 32;
  double sum = 0;
  for (uint32_t block = 0, k = lane * 4; k < depth; ++block, k += 128) {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(codes + k);
    double part = 0;
    for (uint32_t j = 0; j < 4; ++j) part += static_cast<double>(x[k + j]) * numbers[word >> 8 * j & 0xff];
    sum += part * (static_cast<double>(x_scales[block * x_scale_stride]) * scales[block]);
  }
  return sum;
}
__device__ double warp_sum(double value) {
  for (uint32_t step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

/// Decodes a row and the table into shared memory.
__device__ float* load_row(const uint8_t* codes, uint32_t depth, const double* table) {
  extern __shared__ float shared[];
  for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) shared[i] = static_cast<float>(table[i]);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < depth; i += blockDim.x) shared[256 + i] = shared[codes[i]];
  __syncthreads();
  return shared;
}

/// values[row][i]: SwiGLU of the first GEMM, rounded to FP32 once.
__global__ void first_gemm_kernel(const Slot* slots, Quantized x, Matrix w13, MoeShape shape, double limit,
                                  const double* table, double* values) {
  const uint32_t row = blockIdx.x, h = shape.hidden, n = shape.intermediate, groups = h / 128;
  const Slot slot = slots[row];
  const float* numbers = load_row(x.codes + uint64_t{row} * h, h, table);
  const float* x_scales = x.scales + uint64_t{row} * groups;
  const uint64_t rows = uint64_t{slot.expert} * 2 * n, scale_rows = uint64_t{slot.expert} * 2 * ((n + 127) / 128);
  for (uint32_t o = 0; o < kOutputsPerWarp; ++o) {
    const uint32_t i = blockIdx.y * kBlockOutputs + threadIdx.x / 32 * kOutputsPerWarp + o;
    if (i >= n) return;
    const auto dot = [&](uint32_t half) {
      const uint64_t scale_row = scale_rows + half * ((n + 127) / 128) + i / 128;
      return warp_sum(lane_dot(numbers + 256, x_scales, 1, numbers, w13.codes + (rows + half * n + i) * h,
                               w13.scales + scale_row * groups, h));
    };
    const double gate = dot(0), up = dot(1);
    if (threadIdx.x % 32 == 0)
      values[uint64_t{row} * n + i] = static_cast<float>(reference::swiglu_limited(gate, up, limit, slot.weight));
  }
}

/// result[row][column] of the second GEMM, before any rounding; from the oracle's codes, or from the device's own.
__global__ void second_gemm_kernel(const Slot* slots, Quantized acts, bool from_device, Matrix w2, MoeShape shape,
                                   const double* table, double* result) {
  const uint32_t row = blockIdx.x, h = shape.hidden, n = shape.intermediate, groups = (n + 127) / 128;
  const Slot slot = slots[row];
  const float* numbers = load_row(from_device ? slot.codes : acts.codes + uint64_t{row} * n, n, table);
  const float* scales = from_device ? slot.scales : acts.scales + uint64_t{row} * groups;
  const uint32_t stride = from_device ? slot.scale_stride : 1;
  for (uint32_t o = 0; o < kOutputsPerWarp; ++o) {
    const uint32_t column = blockIdx.y * kBlockOutputs + threadIdx.x / 32 * kOutputsPerWarp + o;
    if (column >= h) return;
    const double sum =
        warp_sum(lane_dot(numbers + 256, scales, stride, numbers, w2.codes + (uint64_t{slot.expert} * h + column) * n,
                          w2.scales + (uint64_t{slot.expert} * (h / 128) + column / 128) * groups, n));
    if (threadIdx.x % 32 == 0) result[uint64_t{row} * h + column] = sum;
  }
}

/// Squares of one row's difference and of the expected row; `bad` where a non-finite element is not matched.
struct RowSums {
  double difference;
  double expected;
  uint32_t bad;
  uint32_t reserved;
};

/// One block a row: `actual(row, column)` against `expected(row, column)`.
template <class Actual, class Expected>
__global__ void compare_kernel(uint32_t columns, Actual actual, Expected expected, RowSums* sums) {
  RowSums own{};
  for (uint32_t column = threadIdx.x; column < columns; column += blockDim.x) {
    const double a = actual(blockIdx.x, column), e = expected(blockIdx.x, column);
    if (!isfinite(a) || !isfinite(e)) {
      if (!((a != a && e != e) || a == e)) own.bad = 1;
      continue;
    }
    own.difference += (a - e) * (a - e);
    own.expected += e * e;
  }
  atomicAdd(&sums[blockIdx.x].difference, own.difference);
  atomicAdd(&sums[blockIdx.x].expected, own.expected);
  atomicOr(&sums[blockIdx.x].bad, own.bad);
}

struct OutputActual {
  const uint16_t* output;
  const uint32_t* tokens;
  uint32_t columns;
  __device__ double operator()(uint32_t row, uint32_t column) const {
    return reference::bf16_value(output[uint64_t{tokens[row]} * columns + column]);
  }
};
/// FP32 sum of a token's BF16 rows in slot order, rounded once.
struct CombinedExpected {
  const double* rows;
  uint32_t top_k;
  uint32_t columns;
  __device__ double operator()(uint32_t token, uint32_t column) const {
    float sum = 0;
    for (uint32_t slot = 0; slot < top_k; ++slot)
      sum = static_cast<float>(sum + reference::bf16_value(reference::bf16_nearest(
                                         rows[(uint64_t{token} * top_k + slot) * columns + column])));
    return reference::bf16_value(reference::bf16_nearest(sum));
  }
};
struct SlotActual {
  const Slot* slots;
  __device__ double operator()(uint32_t row, uint32_t column) const {
    return reference::bf16_value(slots[row].combined[column]);
  }
};
struct SlotExpected {
  const double* rows;
  uint32_t columns;
  __device__ double operator()(uint32_t row, uint32_t column) const { return rows[uint64_t{row} * columns + column]; }
};

/// What judge_stages counts on the device; doubles that are not negative order like their bits.
struct Counts {
  unsigned long long input_differs;
  unsigned long long neighbours;
  unsigned long long far;
  unsigned long long worst_far;
  unsigned long long worst_scale;
};

__global__ void compare_codes_kernel(const Slot* slots, Quantized want, uint32_t columns, const double* table,
                                     Counts* counts) {
  const uint32_t row = blockIdx.x, groups = (columns + 127) / 128;
  const Slot slot = slots[row];
  const auto order = [](uint8_t code) { return code & 0x80 ? -(code & 0x7f) : code & 0x7f; };
  for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {
    const uint8_t have = slot.codes[i], wanted = want.codes[uint64_t{row} * columns + i];
    const int distance = abs(order(have) - order(wanted));
    if (distance == 1) atomicAdd(&counts->neighbours, 1ull);
    if (distance <= 1) continue;
    atomicAdd(&counts->far, 1ull);
    const double off = fabs(table[have] - table[wanted]);
    atomicMax(&counts->worst_far, __double_as_longlong(off == off ? off : 1e30));
  }
  for (uint32_t g = threadIdx.x; g < groups; g += blockDim.x) {
    const double off = fabs(slot.scales[g * slot.scale_stride] / double{want.scales[row * groups + g]} - 1.0);
    atomicMax(&counts->worst_scale, __double_as_longlong(off == off ? off : 1e30));
  }
}

/// The tokens' codes and scales in the workspace against the oracle's.
__global__ void compare_input_kernel(const Slot* slots, Quantized want, Quantized have, uint32_t columns,
                                     Counts* counts) {
  const uint32_t row = blockIdx.x, groups = columns / 128;
  const uint64_t token = slots[row].token;
  for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x)
    if (want.codes[uint64_t{row} * columns + i] != have.codes[token * columns + i])
      atomicAdd(&counts->input_differs, 1);
  for (uint32_t g = threadIdx.x; g < groups; g += blockDim.x)
    if (want.scales[row * groups + g] != have.scales[token * groups + g]) atomicAdd(&counts->input_differs, 1);
}

void launched(const char* what) { check_cuda(static_cast<int>(cudaGetLastError()), what); }

template <class T>
T* in(const DeviceBuffer& buffer) {
  return static_cast<T*>(buffer.data());
}

/// Memory for one batch of slots, and the steps that both judgements share.
class Steps {
 public:
  Steps(const DeviceWeights& weights, double limit, const double* table, const std::vector<Slot>& slots)
      : weights_(weights),
        limit_(limit),
        table_(table),
        num_slots_(static_cast<uint32_t>(slots.size())),
        slots_(slots.data(), slots.size() * sizeof(Slot)),
        x_codes_(uint64_t{num_slots_} * shape().hidden),
        x_scales_(uint64_t{num_slots_} * (shape().hidden / 128) * 4),
        values_(uint64_t{num_slots_} * shape().intermediate * 8),
        act_codes_(uint64_t{num_slots_} * shape().intermediate),
        act_scales_(uint64_t{num_slots_} * ((shape().intermediate + 127) / 128) * 4),
        rows_(uint64_t{num_slots_} * shape().hidden * 8) {
    for (const auto kernel :
         {reinterpret_cast<const void*>(&first_gemm_kernel), reinterpret_cast<const void*>(&second_gemm_kernel)})
      check_cuda(static_cast<int>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 131072)),
                 "shared memory of the oracle");
  }

  void intermediate(const DeviceTokens& tokens) {
    const uint32_t h = shape().hidden, n = shape().intermediate;
    quantize_kernel<<<512, kThreads>>>(num_slots_, h, TokenValue{in<uint16_t>(tokens.hidden), slots(), h}, table_, x());
    first_gemm_kernel<<<dim3(num_slots_, (n + kBlockOutputs - 1) / kBlockOutputs), kThreads, (256 + h) * 4>>>(
        slots(), x(), {weights_.w13(), weights_.w13_scale()}, shape(), limit_, table_, in<double>(values_));
    quantize_kernel<<<512, kThreads>>>(num_slots_, n, IntermediateValue{in<double>(values_), n}, table_, acts());
    launched("first GEMM of the oracle");
  }
  void second_gemm(bool from_device) {
    const uint32_t h = shape().hidden, n = shape().intermediate;
    second_gemm_kernel<<<dim3(num_slots_, (h + kBlockOutputs - 1) / kBlockOutputs), kThreads, (256 + n) * 4>>>(
        slots(), acts(), from_device, {weights_.w2(), weights_.w2_scale()}, shape(), table_, in<double>(rows_));
    launched("second GEMM of the oracle");
  }
  template <class Actual, class Expected>
  void compare(uint32_t num_rows, Actual actual, Expected expected, RowFigures& figures) const {
    DeviceBuffer sums(num_rows * sizeof(RowSums));
    sums.fill(0);
    compare_kernel<<<num_rows, kThreads>>>(shape().hidden, actual, expected, in<RowSums>(sums));
    launched("comparison with the oracle");
    std::vector<RowSums> host(num_rows);
    sums.fetch(host.data(), host.size() * sizeof(RowSums));
    for (const RowSums& row : host) {
      const double zero = row.difference == 0 ? 0 : std::numeric_limits<double>::infinity();
      const double error = row.bad != 0        ? std::numeric_limits<double>::infinity()
                           : row.expected == 0 ? zero
                                               : std::sqrt(row.difference / row.expected);
      figures.worst = std::max(figures.worst, error);
      figures.sum += error;
      ++figures.num_rows;
    }
  }

  const Slot* slots() const { return in<Slot>(slots_); }
  Quantized x() const { return {in<uint8_t>(x_codes_), in<float>(x_scales_)}; }
  Quantized acts() const { return {in<uint8_t>(act_codes_), in<float>(act_scales_)}; }
  const double* rows() const { return in<double>(rows_); }
  uint32_t num_slots() const { return num_slots_; }

 private:
  const MoeShape& shape() const { return weights_.shape(); }

  const DeviceWeights& weights_;
  double limit_;
  const double* table_;
  uint32_t num_slots_;
  DeviceBuffer slots_, x_codes_, x_scales_, values_, act_codes_, act_scales_, rows_;
};

constexpr uint32_t kBatchSlots = 3072;  ///< Bounds the memory for intermediate results.

/// The slots of the rows in the pool that are still there.
std::vector<Slot> slots_in_pool(const protocol::RankView& view, const std::vector<uint32_t>& wanted,
                                uint32_t num_tokens) {
  std::vector<bool> is_wanted(num_tokens);
  for (const uint32_t token : wanted) is_wanted[token] = true;
  const auto first_block = fetch_region(view, view.layout.expert_first_block),
             rows = fetch_region(view, view.layout.expert_num_rows);
  const auto meta = fetch_region(view, view.layout.row_meta);
  const protocol::BlockCut cut = view.spec.cut();
  const uint32_t room_m = cut.room_m(), groups = view.spec.intermediate_groups(), top_k = view.spec.shape.top_k;
  const uint32_t num_blocks = first_block[view.spec.local_experts()];
  std::vector<Slot> slots;
  for (uint32_t expert = 0; expert < view.spec.local_experts(); ++expert) {
    for (uint32_t n = 0; n < rows[expert]; ++n) {
      const uint32_t in_expert = cut.block_of(n, cut.num_blocks(rows[expert]));
      const uint32_t block = first_block[expert] + in_expert, row = n - in_expert * cut.block_m;
      if (block + view.act_ring().num_slots < num_blocks) continue;  // another block lies there now
      const protocol::RowMeta& note = meta[uint64_t{block} * room_m + row];
      const uint32_t token = note.token_slot / top_k, slot = note.token_slot % top_k;
      if (token >= num_tokens || !is_wanted[token]) continue;
      const uint64_t ring_slot = view.act_ring().slot(block);
      slots.push_back({token, slot, expert, note.weight,
                       view.layout.act_codes.in(view.own()) + (ring_slot * room_m + row) * view.spec.shape.intermediate,
                       view.layout.act_scales.in(view.own()) + ring_slot * groups * room_m + row,
                       view.layout.combine_rows.in(view.own()) +
                           (uint64_t{slot} * view.spec.max_tokens + token) * view.spec.shape.hidden,
                       room_m});
    }
  }
  return slots;
}

}  // namespace

DeviceOracle::DeviceOracle(const DeviceWeights& weights, std::optional<float> clamp)
    : weights_(weights),
      limit_(clamp.value_or(std::numeric_limits<float>::infinity())),
      table_(reference::e4m3_values().data(), sizeof(double) * 256) {}

RowFigures DeviceOracle::judge_rows(const DeviceTokens& tokens, const std::vector<uint32_t>& rows) const {
  RowFigures figures;
  const uint32_t top_k = tokens.shape.top_k, h = tokens.shape.hidden, batch = std::max(1u, kBatchSlots / top_k);
  for (size_t first = 0; first < rows.size(); first += batch) {
    const std::vector<uint32_t> part(rows.begin() + static_cast<int64_t>(first),
                                     rows.begin() + static_cast<int64_t>(std::min(rows.size(), first + batch)));
    std::vector<Slot> slots;
    for (const uint32_t token : part)
      for (uint32_t slot = 0; slot < top_k; ++slot) {
        const uint64_t at = uint64_t{token} * top_k + slot;
        slots.push_back(
            {token, slot, static_cast<uint32_t>(tokens.ids[at]), tokens.router[at], nullptr, nullptr, nullptr, 0});
      }
    Steps steps(weights_, limit_, in<double>(table_), slots);
    steps.intermediate(tokens);
    steps.second_gemm(false);
    const DeviceBuffer numbers(part.data(), part.size() * 4);
    steps.compare(static_cast<uint32_t>(part.size()),
                  OutputActual{in<uint16_t>(tokens.output), in<uint32_t>(numbers), h},
                  CombinedExpected{steps.rows(), top_k, h}, figures);
  }
  return figures;
}

StageFigures DeviceOracle::judge_stages(const protocol::RankView& view, const DeviceTokens& tokens,
                                        const std::vector<uint32_t>& rows) const {
  StageFigures figures;
  const std::vector<Slot> all = slots_in_pool(view, rows, tokens.num_tokens);
  const uint32_t h = tokens.shape.hidden, n = tokens.shape.intermediate;
  DeviceBuffer counts_buffer(sizeof(Counts));
  counts_buffer.fill(0);
  for (size_t first = 0; first < all.size(); first += kBatchSlots) {
    const std::vector<Slot> part(all.begin() + static_cast<int64_t>(first),
                                 all.begin() + static_cast<int64_t>(std::min<size_t>(all.size(), first + kBatchSlots)));
    Steps steps(weights_, limit_, in<double>(table_), part);
    steps.intermediate(tokens);
    compare_input_kernel<<<steps.num_slots(), kThreads>>>(
        steps.slots(), steps.x(), {view.layout.input_codes.in(view.own()), view.layout.input_scales.in(view.own())}, h,
        in<Counts>(counts_buffer));
    compare_codes_kernel<<<steps.num_slots(), kThreads>>>(steps.slots(), steps.acts(), n, in<double>(table_),
                                                          in<Counts>(counts_buffer));
    launched("comparison of codes");
    steps.second_gemm(true);
    steps.compare(steps.num_slots(), SlotActual{steps.slots()}, SlotExpected{steps.rows(), h}, figures.rows);
    figures.num_codes += uint64_t{steps.num_slots()} * n;
  }
  Counts counts;
  counts_buffer.fetch(&counts, sizeof(counts));
  figures.input_differs = counts.input_differs;
  figures.neighbours = counts.neighbours;
  figures.far = counts.far;
  const auto number = [](unsigned long long bits) {
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
  };
  figures.worst_far = number(counts.worst_far);
  figures.worst_scale = number(counts.worst_scale);
  return figures;
}

}  // namespace megamoe::device_check
