// What must hold through the public interface: checkpoints of tests/fixtures, refusals, on ranks that share the GPU.
#include <fmt/format.h>

#include <limits>

#include "core/formats/bf16.h"
#include "core/reference/row_error.h"
#include "device/checks.h"
#include "io/layer_files.h"
#include "io/moe_weights.h"
#include "support/fixture_folder.h"
#include "support/layer_group.h"

namespace megamoe::device_check {
namespace {

using test::LayerGroup;
using test::RankOutput;
using test::TestTokens;
using test::TestWeights;

LayerConfig cuda_config(const MoeShape& shape, uint32_t max_tokens) {
  LayerConfig config = test::small_config(shape, max_tokens);
  config.backend = "cuda";
  return config;
}

Status first_error(const std::vector<Status>& statuses) {
  for (const Status& status : statuses)
    if (!status.ok()) return status;
  return {};
}

Status first_error(const std::vector<RankOutput>& outputs) {
  for (const RankOutput& output : outputs)
    if (!output.status.ok()) return output.status;
  return {};
}

std::vector<uint16_t> joined(const std::vector<RankOutput>& outputs) {
  std::vector<uint16_t> rows;
  for (const RankOutput& output : outputs) rows.insert(rows.end(), output.rows.begin(), output.rows.end());
  return rows;
}

double worst_row(const TestWeights& weights, const TestTokens& tokens, const std::vector<uint16_t>& rows) {
  const reference::Layer layer = weights.layer();
  const reference::Input input = tokens.input();
  const uint32_t hidden = weights.shape.hidden;
  std::vector<double> expected(hidden);
  double worst = 0;
  for (uint64_t token = 0; token < tokens.num_tokens; ++token) {
    reference::forward_row(layer, input, token, reference::Mode::kContract, expected.data());
    worst = std::max(worst, reference::row_error(rows.data() + token * hidden, expected.data(), hidden).rel_l2);
  }
  return worst;
}

template <class Buffer>
auto copy_of(const Buffer& buffer) {
  return std::vector<std::remove_cvref_t<decltype(buffer[0])>>(buffer.data(), buffer.data() + buffer.size());
}

/// A checkpoint on 1, 2 and 4 ranks: the same bits, the oracle's rows, and close to what transformers computed.
Outcome fixture(const std::string& name, const std::string& compare, double max_row, double mean_row) {
  const std::string folder = test::fixture_folder(name);
  const auto loaded = io::load_moe_layer(folder, 1);
  if (!loaded.ok()) return {false, loaded.status().message() + "; say with MEGAMOE_FIXTURES where the fixtures lie"};
  const auto inputs = io::read_layer_inputs(folder + "/moe_layer_io.safetensors");
  if (!inputs.ok()) return {false, inputs.status().message()};
  const auto unquantised = io::read_compare(folder + "/moe_layer_io.safetensors", compare);
  if (!unquantised.ok()) return {false, unquantised.status().message()};
  const io::LayerWeights& from = loaded.value();
  const TestWeights weights{from.shape(), copy_of(from.w13), copy_of(from.w13_scale), copy_of(from.w2),
                            copy_of(from.w2_scale)};
  TestTokens tokens;
  tokens.num_tokens = inputs.value().num_tokens;
  tokens.hidden = copy_of(inputs.value().hidden_states);
  tokens.topk_ids = copy_of(inputs.value().topk_ids);
  tokens.topk_weights = copy_of(inputs.value().topk_weights);

  std::vector<uint16_t> first;
  for (const uint32_t num_ranks : {1u, 2u, 4u}) {
    LayerGroup group(cuda_config(weights.shape, 128), num_ranks, weights);
    if (const Status status = first_error(group.created()); !status.ok()) return {false, status.message()};
    const std::vector<RankOutput> outputs = group.forward(test::split_tokens(weights.shape, tokens, num_ranks));
    if (const Status status = first_error(outputs); !status.ok()) return {false, status.message()};
    if (first.empty()) first = joined(outputs);
    if (joined(outputs) != first) return {false, fmt::format("{} ranks give other bits than 1", num_ranks)};
  }
  reference::ErrorSummary distance;
  const io::FloatRows& rows = unquantised.value();
  for (uint64_t row = 0; row < rows.num_rows; ++row)
    distance.add(
        row, reference::row_error_of(
                 rows.num_cols, [&](uint64_t i) { return double{core::bf16_decode(first[row * rows.num_cols + i])}; },
                 [&](uint64_t i) { return double{rows.values[row * rows.num_cols + i]}; }));
  const double worst = worst_row(weights, tokens, first);
  return {distance.rows_checked == tokens.num_tokens && tokens.num_tokens > 0 && worst <= 4e-2 &&
              distance.max_row_rel_l2 <= max_row && distance.mean_row_rel_l2 <= mean_row,
          fmt::format("{} rows on 1, 2 and 4 ranks, the same bits; oracle {:.2e} at most (limit 4e-02); transformers "
                      "{:.2e} at most (limit {:.1e}), {:.2e} on average (limit {:.1e})",
                      tokens.num_tokens, worst, distance.max_row_rel_l2, max_row, distance.mean_row_rel_l2, mean_row)};
}

/// Host tensors, scales that are not finite and a backend that does not fit are refused; the layer works afterwards.
Outcome refusals() {
  const MoeShape shape{256, 128, 8, 2};
  TestWeights weights = test::gen_weights(shape, 1);
  const TestTokens all = test::gen_tokens(shape, 20, 2);
  const std::vector<TestTokens> tokens = test::split_tokens(shape, all, 2);
  LayerGroup group(cuda_config(shape, 16), 2, weights);
  if (const Status status = first_error(group.created()); !status.ok()) return {false, status.message()};
  const std::vector<RankOutput> refused = group.forward(tokens, [&](uint32_t rank, ForwardArgs& args) {
    if (rank == 1) args.topk_ids.dtype = DType::kFloat32;
  });
  const bool both = refused[1].status.code() == Code::kInvalidArgument &&
                    refused[0].status.code() == Code::kPeerFailed &&
                    refused[0].status.message().find(refused[1].status.message()) != std::string::npos;
  bool untouched = true;
  for (const uint16_t element : joined(refused)) untouched = untouched && element == test::kPoison;

  const std::vector<RankOutput> odd = group.forward(tokens, [&](uint32_t rank, ForwardArgs& args) {
    if (rank == 0) args.hidden_states.strides[0] += 1;
  });
  const bool aligned =
      odd[0].status.message().find("each row of hidden_states must begin at a multiple of 16") != std::string::npos &&
      odd[1].status.code() == Code::kPeerFailed;

  const Status host = group.layer(0).load_weights(test::rank_weights(weights, 0, 2));
  const bool place = host.message().find("w13 must lie in GPU memory for the cuda backend") != std::string::npos;
  std::vector<uint16_t> unused;
  LayerGroup alone(cuda_config(shape, 16), 1, weights);
  const Status host_tokens = alone.layer(0).forward(test::forward_args(shape, tokens[0], unused));
  const bool placed = host_tokens.message().find("hidden_states must lie in GPU memory") != std::string::npos &&
                      alone.forward({tokens[0]})[0].status.ok();
  const std::vector<RankOutput> after = group.forward(tokens);
  const double worst = first_error(after).ok() ? worst_row(weights, all, joined(after)) : 1;

  weights.w2_scale[3] = std::numeric_limits<float>::quiet_NaN();
  const LayerGroup spoilt(cuda_config(shape, 16), 1, weights);
  const bool scale = spoilt.created()[0].message().find("every scale of w2_scale must be finite") != std::string::npos;
  LayerConfig config = cuda_config(shape, 16);
  config.backend = "cpu";
  const LayerGroup misfit(config, make_cuda_thread_group(2).value(), test::zero_weights(shape));
  bool fits = false;
  for (const Status& status : misfit.created())
    fits = fits || status.message().find("backend cpu needs a group with memory of the host") == std::string::npos;
  return {both && untouched && aligned && place && placed && worst <= 4e-2 && scale && !fits,
          fmt::format("\"{}\"; peer: \"{}\"; output {}; odd rows {}; host weights: \"{}\"; host tokens: \"{}\"; next "
                      "call within {:.1e}; NaN scale {}; "
                      "backend cpu {}",
                      refused[1].status.message(), refused[0].status.message(), untouched ? "untouched" : "WRITTEN",
                      aligned ? "refused" : "TAKEN", host.message(), host_tokens.message(), worst,
                      scale ? "refused" : "TAKEN", fits ? "TAKEN" : "refused")};
}

/// Several blocks of input tokens on every CTA: on one rank and on four, call after call, the same bits.
Outcome many_tokens() {
  const MoeShape shape{1024, 128, 8, 2};
  const TestWeights weights = test::gen_weights(shape, 51);
  const TestTokens all = test::gen_tokens(shape, 6400, 52);
  std::vector<uint16_t> first;
  for (const uint32_t num_ranks : {1u, 4u}) {
    LayerGroup group(cuda_config(shape, 6400 / num_ranks), num_ranks, weights);
    if (const Status status = first_error(group.created()); !status.ok()) return {false, status.message()};
    const std::vector<TestTokens> tokens = test::split_tokens(shape, all, num_ranks);
    for (int call = 0; call < 10; ++call) {
      const std::vector<RankOutput> outputs = group.forward(tokens);
      if (const Status status = first_error(outputs); !status.ok()) return {false, status.message()};
      if (first.empty()) first = joined(outputs);
      if (joined(outputs) != first)
        return {false, fmt::format("call {} on {} ranks gives other bits", call, num_ranks)};
    }
  }
  TestTokens sample = all;
  sample.num_tokens = 200;
  const double worst = worst_row(weights, sample, first);
  return {worst <= 4e-2,
          fmt::format("6400 BF16 tokens, 10 calls on 1 and on 4 ranks, the same bits; the first 200 rows "
                      "within {:.1e} of the oracle",
                      worst)};
}

}  // namespace

std::vector<Check> layer_checks() {
  return {
      {"layer.fixture_fp8", [] { return fixture("deepseek_v3_fp8", "routed_out_fp32_dequant_weights", 8e-2, 5e-2); }},
      {"layer.fixture_bf16", [] { return fixture("deepseek_v3", "experts_out", 1.1e-1, 7.5e-2); }},
      {"layer.many_tokens", [] { return many_tokens(); }},
      {"layer.refusals", [] { return refusals(); }},
  };
}

}  // namespace megamoe::device_check
