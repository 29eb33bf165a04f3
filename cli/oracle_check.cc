// Picks the rows, runs the oracle on threads, sums up in row order so that the figures are the same on every run.
#include "cli/oracle_check.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "cli/progress.h"
#include "core/reference/formats.h"
#include "core/reference/layer.h"

namespace megamoe::cli {
namespace {

constexpr uint64_t kCheckAllBelowMacs = 2'000'000'000;
constexpr uint64_t kSampledRows = 64;

/// The experts of [n][2I][H], [n][H][I] and their scales.
template <class Weights>
void add_experts(const MoeShape& shape, const Weights& weights, uint64_t count,
                 std::vector<reference::ExpertWeights>& experts) {
  const uint64_t hidden = shape.hidden;
  const uint64_t intermediate = shape.intermediate;
  const uint64_t grid = hidden / kScaleGroup * ((intermediate + kScaleGroup - 1) / kScaleGroup);
  for (uint64_t local = 0; local < count; ++local) {
    reference::ExpertWeights expert;
    expert.w13 = weights.w13.data() + local * 2 * intermediate * hidden;
    expert.gate_scale = weights.w13_scale.data() + local * 2 * grid;
    expert.up_scale = expert.gate_scale + grid;
    expert.w2 = weights.w2.data() + local * hidden * intermediate;
    expert.w2_scale = weights.w2_scale.data() + local * grid;
    experts.push_back(expert);
  }
}

reference::Layer oracle_layer(const LayerData& data) {
  reference::Layer layer;
  layer.shape = data.shape;
  layer.clamp = data.clamp;
  for (const io::LayerWeights& weights : data.weights) {
    add_experts(data.shape, weights, weights.num_local_experts(), layer.experts);
  }
  add_experts(data.shape, data.shared, data.shared.num_experts, layer.shared_experts);
  return layer;
}

reference::Input oracle_input(const io::LayerInputs& inputs) {
  reference::Input input;
  input.num_tokens = inputs.num_tokens;
  input.hidden_bf16 = inputs.hidden_states.data();
  input.topk_ids = inputs.topk_ids.data();
  input.topk_weights = inputs.topk_weights.data();
  if (!inputs.shared_weights.empty()) input.options.shared_weights = inputs.shared_weights.data();
  return input;
}

/// What the layer must give for one token, the rows of a second call added.
void expected_row(const reference::Layer& layer, const LayerData& data, uint64_t row, std::vector<double>& expected) {
  reference::forward_row(layer, oracle_input(data.inputs), row, reference::Mode::kContract, expected.data());
  if (!data.shared_inputs) return;
  std::vector<double> second(expected.size());
  reference::forward_row(layer, oracle_input(*data.shared_inputs), row, reference::Mode::kContract, second.data());
  for (size_t col = 0; col < expected.size(); ++col) {
    const auto sum = static_cast<float>(expected[col] + second[col]);
    expected[col] = reference::bf16_value(reference::bf16_nearest(sum));
  }
}

/// `count` distinct numbers below `end`, each set equally likely (Floyd's method).
std::set<uint64_t> sample(uint64_t count, uint64_t end, std::mt19937_64& random) {
  std::set<uint64_t> chosen;
  for (uint64_t last = end - count; last < end; ++last) {
    const uint64_t candidate = random() % (last + 1);
    chosen.insert(chosen.contains(candidate) ? last : candidate);
  }
  return chosen;
}

/// How many rows each rank contributes: one more for every rank in turn while it has tokens left.
std::vector<uint64_t> spread(uint64_t count, const std::vector<uint32_t>& tokens_per_rank) {
  std::vector<uint64_t> quotas(tokens_per_rank.size(), 0);
  for (size_t rank = 0; count > 0; rank = (rank + 1) % quotas.size()) {
    if (quotas[rank] == tokens_per_rank[rank]) continue;
    quotas[rank] += 1;
    count -= 1;
  }
  return quotas;
}

}  // namespace

std::vector<uint64_t> rows_to_check(const CheckChoice& choice, const LayerData& data, uint64_t seed) {
  const uint64_t num_rows = data.tokens_before(data.num_ranks());
  const double macs =
      3.0 * data.shape.hidden * data.shape.intermediate * data.shape.top_k * static_cast<double>(num_rows);
  uint64_t count = num_rows;
  if (choice.kind == CheckChoice::Kind::kNone) count = 0;
  if (choice.kind == CheckChoice::Kind::kRows) count = choice.num_rows;
  if (choice.kind == CheckChoice::Kind::kByWork && macs >= static_cast<double>(kCheckAllBelowMacs))
    count = kSampledRows;
  count = std::min(count, num_rows);

  std::vector<uint64_t> rows;
  if (count == num_rows) {
    rows.resize(num_rows);
    std::iota(rows.begin(), rows.end(), uint64_t{0});
    return rows;
  }
  std::mt19937_64 random(seed);
  const std::vector<uint64_t> quotas = spread(count, data.tokens_per_rank);
  uint64_t first = 0;
  for (size_t rank = 0; rank < quotas.size(); ++rank) {
    for (const uint64_t row : sample(quotas[rank], data.tokens_per_rank[rank], random)) rows.push_back(first + row);
    first += data.tokens_per_rank[rank];
  }
  return rows;
}

reference::ErrorSummary check_against_oracle(const LayerData& data, std::span<const uint16_t> output,
                                             const std::vector<uint64_t>& rows) {
  const reference::Layer layer = oracle_layer(data);
  std::vector<reference::RowError> errors(rows.size());
  {
    Progress progress("checking rows", rows.size());
    std::atomic<size_t> next{0};
    const auto work = [&] {
      std::vector<double> expected(data.shape.hidden);
      for (size_t i = next.fetch_add(1); i < rows.size(); i = next.fetch_add(1)) {
        expected_row(layer, data, rows[i], expected);
        errors[i] =
            reference::row_error(output.data() + rows[i] * data.shape.hidden, expected.data(), data.shape.hidden);
        progress.advance();
      }
    };
    const size_t num_threads = std::clamp<size_t>(rows.size(), 1, std::max(std::thread::hardware_concurrency(), 1U));
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < num_threads; ++i) threads.emplace_back(work);
  }
  reference::ErrorSummary summary;
  for (size_t i = 0; i < rows.size(); ++i) summary.add(rows[i], errors[i]);
  return summary;
}

reference::ErrorSummary check_against_compare(const LayerData& data, std::span<const uint16_t> output) {
  reference::ErrorSummary summary;
  const uint64_t hidden = data.shape.hidden;
  for (uint64_t row = 0; row < data.compare->num_rows; ++row) {
    const uint16_t* const actual = output.data() + row * hidden;
    const float* const expected = data.compare->values.data() + row * hidden;
    summary.add(row, reference::row_error_of(
                         hidden, [&](uint64_t i) { return reference::bf16_value(actual[i]); },
                         [&](uint64_t i) { return static_cast<double>(expected[i]); }));
  }
  return summary;
}

}  // namespace megamoe::cli
