// Layers of real sizes with weights made on the device, judged by the oracle on the device: slices of two models at 1
// to 8,192 tokens, and every shape that `megamoe models` lists.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "api/models.h"
#include "device/checks.h"
#include "device/oracle.h"

namespace megamoe::device_check {
namespace {

constexpr MoeShape kFlash{4096, 2048, 32, 6};
constexpr MoeShape kPro{7168, 3072, 48, 6};
constexpr uint32_t kMostTokens = 8192;
constexpr uint32_t kAllRows = 512;  ///< Up to here every row is judged by the oracle.

/// Tokens that lie at the edges of tiles, as the last call placed them, and others at even distances: about `count`.
std::vector<uint32_t> rows_to_judge(const protocol::RankView& view, uint32_t num_tokens, uint32_t count) {
  std::set<uint32_t> rows;
  if (num_tokens <= kAllRows) count = num_tokens;
  for (uint32_t i = 0; i < count; ++i) rows.insert(static_cast<uint32_t>(uint64_t{i} * num_tokens / count));
  if (num_tokens <= kAllRows) return {rows.begin(), rows.end()};
  const auto num_rows = fetch_region(view, view.layout.expert_num_rows);
  const auto first_block = fetch_region(view, view.layout.expert_first_block);
  const auto meta = fetch_region(view, view.layout.row_meta);
  const protocol::BlockCut cut = view.spec.cut();
  std::vector<uint32_t> edges;
  for (uint32_t expert = 0; expert < view.spec.local_experts(); ++expert)
    for (uint32_t n = 0; n < num_rows[expert]; ++n) {
      const uint32_t block = cut.block_of(n, cut.num_blocks(num_rows[expert])), row = n - block * cut.block_m;
      if (row % 64 != 0 && row % 64 != 63 && n + 1 != num_rows[expert]) continue;
      edges.push_back(meta[uint64_t{first_block[expert] + block} * cut.room_m() + row].token_slot /
                      view.spec.shape.top_k);
    }
  const size_t step = std::max<size_t>(1, edges.size() / count);
  for (size_t i = 0; i < edges.size(); i += step) rows.insert(edges[i]);
  return {rows.begin(), rows.end()};
}

/// The outputs of all tokens in calls of kAllRows.
Status run_in_small_calls(Rig& rig, DeviceTokens& tokens) {
  tokens.poison();
  for (uint32_t first = 0; first < tokens.num_tokens; first += kAllRows) {
    const uint32_t count = std::min(kAllRows, tokens.num_tokens - first);
    if (const Status status = rig.forward({tokens.args(first, count)})[0]; !status.ok()) return status;
  }
  return {};
}

/// The call that ended last, once more with the codes and scales that it made of its BF16 tokens, from other memory.
Status run_quantized(Rig& rig, const DeviceTokens& tokens, uint32_t count) {
  const protocol::RankView& view = rig.rank(0).view();
  const int64_t t = count, h = tokens.shape.hidden;
  const DeviceBuffer codes(uint64_t{count} * tokens.shape.hidden), scales(uint64_t{count} * tokens.shape.hidden / 32);
  check_cuda(static_cast<int>(cudaMemcpy(codes.data(), view.layout.input_codes.in(view.own()), codes.bytes(),
                                         cudaMemcpyDeviceToDevice)),
             "codes");
  check_cuda(static_cast<int>(cudaMemcpy(scales.data(), view.layout.input_scales.in(view.own()), scales.bytes(),
                                         cudaMemcpyDeviceToDevice)),
             "scales");
  ForwardArgs args = tokens.args(0, count);
  args.hidden_states = TensorView::dense(codes.data(), DType::kFloat8E4M3, {t, h});
  args.hidden_states_scale = TensorView::dense(scales.data(), DType::kFloat32, {t, h / 128});
  args.hidden_states.device = args.hidden_states_scale.device = Device::kCuda;
  args.scale_format = ScaleFormat::kFloat32;
  check_cuda(static_cast<int>(cudaDeviceSynchronize()), "codes and scales");
  return rig.forward({args})[0];
}

Outcome slice(const MoeShape& shape, const sm90::KernelInstance& instance, const std::vector<uint32_t>& sizes) {
  const DeviceWeights weights(shape, 7);
  const DeviceOracle oracle(weights, std::nullopt);
  DeviceTokens tokens(shape, sizes.back(), 9), small(shape, sizes.back(), 9);
  Rig rig(check_config(shape, sizes.back()), 1, &instance);
  rig.load(weights);
  if (const Status status = run_in_small_calls(rig, small); !status.ok()) return {false, status.message()};
  uint64_t judged = 0, equal = 0, differing = 0, differing_quantized = 0, codes = 0, neighbours = 0, inputs = 0,
           slots = 0;
  double worst = 0, worst_stage = 0, worst_scale = 0, worst_far = 0;
  for (const uint32_t count : sizes) {
    tokens.poison();
    if (const Status status = rig.forward({tokens.args(0, count)})[0]; !status.ok())
      return {false, fmt::format("{} tokens: {}", count, status.message())};
    const std::vector<uint32_t> rows = rows_to_judge(rig.rank(0).view(), count, 192);
    const StageFigures stages = oracle.judge_stages(rig.rank(0).view(), tokens, rows);
    const RowFigures ends = oracle.judge_rows(tokens, rows);
    differing += count_differing_rows(tokens.output.data(), small.output.data(), count, count, shape.hidden * 2);
    tokens.poison();
    if (const Status status = run_quantized(rig, tokens, count); !status.ok())
      return {false, fmt::format("{} E4M3 tokens: {}", count, status.message())};
    differing_quantized +=
        count_differing_rows(tokens.output.data(), small.output.data(), count, count, shape.hidden * 2);
    if (count > kAllRows && rows.size() < 256) return {false, fmt::format("{} rows judged of {}", rows.size(), count)};
    judged += ends.num_rows;
    equal += count;
    worst = std::max(worst, ends.worst);
    inputs += stages.input_differs;
    slots += stages.rows.num_rows;
    codes += stages.num_codes;
    neighbours += stages.neighbours;
    worst_far = std::max(worst_far, stages.worst_far);
    worst_scale = std::max(worst_scale, stages.worst_scale);
    worst_stage = std::max(worst_stage, stages.rows.worst);
  }
  const double share = static_cast<double>(neighbours) / static_cast<double>(std::max<uint64_t>(1, codes));
  const bool passed = differing == 0 && differing_quantized == 0 && inputs == 0 && slots > 0 && share <= 0.03 &&
                      worst_far <= 0.5 && worst_scale <= 1e-3 && worst_stage <= 4e-3 && worst <= row_limit(shape);
  return {passed,
          fmt::format("{} to {} tokens: {} of {} rows differ from calls of {}, {} with E4M3 tokens; {} rows against "
                      "the oracle within {:.2e} "
                      "(limit {:.1e}); {} slots in stages: inputs that differ {}, codes {:.2f}% neighbours, the others "
                      "off by at most {:.2g} of 448, scales within {:.1e}, rows from the device's codes within {:.1e}",
                      sizes.front(), sizes.back(), differing, equal, kAllRows, differing_quantized, judged, worst,
                      row_limit(shape), slots, inputs, share * 100, worst_far, worst_scale, worst_stage)};
}

/// All ranks' statuses in one.
Status first_error(const std::vector<Status>& statuses) {
  for (const Status& status : statuses)
    if (!status.ok()) return status;
  return {};
}

Outcome model(const api::ModelPreset& preset) {
  const MoeShape& shape = preset.shape;
  LayerConfig config = check_config(shape, 64);
  config.swiglu_clamp = preset.clamp;
  config.backend = "cuda";
  const Result<LayerPlan> plan = MoeLayer::plan(config, 1);
  if (!plan.ok())
    return {shape.hidden % 128 != 0 && plan.status().message().find("multiple of 128") != std::string::npos,
            fmt::format("refused: {}", plan.status().message())};
  const DeviceWeights weights(shape, 17);
  const DeviceOracle oracle(weights, preset.clamp);
  uint64_t judged = 0;
  double worst = 0, sum = 0;
  for (const uint32_t num_ranks : {1u, shape.num_experts % 8 == 0 ? 8u : 2u}) {
    Rig rig(config, num_ranks);
    rig.load(weights);
    for (const uint32_t count : num_ranks == 1 ? std::vector<uint32_t>{1, 33} : std::vector<uint32_t>{5}) {
      std::vector<std::unique_ptr<DeviceTokens>> tokens;
      std::vector<ForwardArgs> args;
      for (uint32_t rank = 0; rank < num_ranks; ++rank) {
        tokens.push_back(std::make_unique<DeviceTokens>(shape, count, 100 + rank));
        args.push_back(tokens.back()->args());
      }
      if (const Status status = first_error(rig.forward(args)); !status.ok())
        return {false, fmt::format("{} ranks: {}", num_ranks, status.message())};
      std::vector<uint32_t> all(count);
      for (uint32_t i = 0; i < count; ++i) all[i] = i;
      for (const auto& mine : tokens) {
        const RowFigures figures = oracle.judge_rows(*mine, all);
        judged += figures.num_rows;
        worst = std::max(worst, figures.worst);
        sum += figures.sum;
      }
    }
  }
  return {worst <= row_limit(shape) && judged > 0,
          fmt::format("{} x {}, {} experts, top-{}: {} rows on 1 and several ranks, worst {:.2e} (limit {:.1e}), mean "
                      "{:.2e}",
                      shape.hidden, shape.intermediate, shape.num_experts, shape.top_k, judged, worst, row_limit(shape),
                      sum / static_cast<double>(judged))};
}

/// 200,000 tokens a rank: offsets beyond 32 bits, in rows that repeat every 64.
Outcome huge_capacity() {
  constexpr MoeShape kShape{7168, 512, 8, 2};
  constexpr uint32_t kTokens = 200'000, kPeriod = 64;
  const DeviceWeights weights(kShape, 27);
  const DeviceOracle oracle(weights, std::nullopt);
  Rig rig(check_config(kShape, kTokens), 2);
  rig.load(weights);
  std::vector<std::unique_ptr<DeviceTokens>> tokens;
  std::vector<ForwardArgs> args;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    tokens.push_back(std::make_unique<DeviceTokens>(kShape, kTokens, 31 + rank));
    DeviceTokens& mine = *tokens.back();
    fill_bf16(mine.hidden.data(), uint64_t{kTokens} * kShape.hidden, 31 + rank, kPeriod * kShape.hidden);
    for (size_t i = 0; i < mine.ids.size(); ++i) {
      mine.ids[i] = mine.ids[i % (kPeriod * kShape.top_k)];
      mine.router[i] = mine.router[i % (kPeriod * kShape.top_k)];
    }
    mine.upload();
    args.push_back(mine.args());
  }
  if (const Status status = first_error(rig.forward(args)); !status.ok()) return {false, status.message()};
  uint64_t differing = 0;
  double worst = 0;
  std::vector<uint32_t> first(kPeriod);
  for (uint32_t i = 0; i < kPeriod; ++i) first[i] = i;
  for (const auto& mine : tokens) {
    differing += count_differing_rows(mine->output.data(), mine->output.data(), kTokens, kPeriod, kShape.hidden * 2);
    worst = std::max(worst, oracle.judge_rows(*mine, first).worst);
  }
  return {differing == 0 && worst <= row_limit(kShape),
          fmt::format("2 ranks x {} tokens, {} bytes of workspace each: {} rows differ from their like; oracle {:.2e}",
                      kTokens, rig.rank(0).view().layout.bytes, differing, worst)};
}

/// The oracle on the device sees one element that is wrong, and agrees with the host's.
Outcome oracle_can_fail() {
  constexpr MoeShape kShape{512, 1024, 8, 2};
  const DeviceWeights weights(kShape, 37);
  const DeviceOracle oracle(weights, 0.5f);
  LayerConfig config = check_config(kShape, 64);
  config.swiglu_clamp = 0.5f;
  Rig rig(config, 1);
  rig.load(weights);
  DeviceTokens tokens(kShape, 64, 38);
  if (const Status status = rig.forward({tokens.args()})[0]; !status.ok()) return {false, status.message()};
  const std::vector<uint32_t> rows = {5, 17, 63};
  const double right = oracle.judge_rows(tokens, rows).worst;
  const DeviceOracle without_clamp(weights, std::nullopt);
  const double unclamped = without_clamp.judge_rows(tokens, rows).worst;
  const auto flip = [](void* at) {
    uint8_t byte;
    fetch_bytes(&byte, at, 1);
    byte ^= 0x20;
    check_cuda(static_cast<int>(cudaMemcpy(at, &byte, 1, cudaMemcpyHostToDevice)), "flip");
  };
  flip(static_cast<char*>(tokens.output.data()) + (17 * kShape.hidden + 3) * 2 + 1);  // of an exponent
  const double spoiled = oracle.judge_rows(tokens, rows).worst;
  const protocol::RankView& view = rig.rank(0).view();
  const StageFigures before = oracle.judge_stages(view, tokens, rows);
  for (uint32_t row = 0; row < view.layout.act_codes.count; row += kShape.intermediate)
    flip(view.layout.act_codes.in(view.own()) + row);  // one code of every row
  flip(view.layout.input_codes.in(view.own()) + 17 * kShape.hidden);
  const StageFigures after = oracle.judge_stages(view, tokens, rows);
  return {
      right <= row_limit(kShape) && unclamped > 3e-2 && spoiled > row_limit(kShape) && before.input_differs == 0 &&
          after.input_differs > 0 && after.worst_far > before.worst_far && after.rows.worst > before.rows.worst,
      fmt::format("right rows {:.1e}, without the clamp {:.1e}, one element wrong {:.1e}; codes off by at most {:.2g} "
                  "of 448, wrong ones {:.2g}; rows from wrong codes {:.1e} instead of {:.1e}",
                  right, unclamped, spoiled, before.worst_far, after.worst_far, after.rows.worst, before.rows.worst)};
}

}  // namespace

std::vector<Check> slice_checks() {
  const std::vector<uint32_t> sizes = {1, 8, 32, 128, 256, 512, 1024, 2048, 4096, kMostTokens};
  const std::vector<uint32_t> small = {1, 8, 32, 128, 256};
  std::vector<Check> checks = {
      {"slice.flash.m128", [=] { return slice(kFlash, sm90::m128_instance(), sizes); }},
      {"slice.flash.m64", [=] { return slice(kFlash, sm90::m64_instance(), small); }},
      {"slice.pro.m128", [=] { return slice(kPro, sm90::m128_instance(), sizes); }},
      {"slice.pro.m64", [=] { return slice(kPro, sm90::m64_instance(), small); }},
      {"oracle_can_fail", [] { return oracle_can_fail(); }},
      {"huge_capacity", [] { return huge_capacity(); }},
  };
  for (const api::ModelPreset& preset : api::model_presets())
    checks.push_back({fmt::format("model.{}", preset.name), [&preset] { return model(preset); }});
  return checks;
}

}  // namespace megamoe::device_check
