// What must hold on a GPU: results against the oracle, equality of bits, refusals, deadlines.
#include "device/checks.h"

#include <fmt/format.h>

#include <cuda_runtime_api.h>
#include <algorithm>
#include <atomic>

#include <cmath>
#include <cstring>
#include <thread>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "core/reference/row_error.h"
#include "device/rig.h"

namespace megamoe::device_check {
namespace {

using test::TestTokens;
using test::TestWeights;

struct Instance {
  const char* name;
  const sm90::KernelInstance* instance;
};
std::vector<Instance> instances() {
  return {{"m128", &sm90::m128_instance()},
          {"m64", &sm90::m64_instance()},
          {"m64_768", &sm90::m64_768_instance()},
          {"m64_256", &sm90::m64_256_instance()}};
}

/// Runs `work(i)` for i below `count` on all cores.
template <class Work>
void in_parallel(uint64_t count, Work work) {
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back([&] {
      for (uint64_t i = next++; i < count; i = next++) work(i);
    });
  for (std::thread& thread : threads) thread.join();
}

/// Every row of every rank against the oracle.
Outcome against_oracle(const MoeShape& shape, const TestWeights& weights, const std::vector<TestTokens>& tokens,
                       const std::vector<CallResult>& results, std::optional<float> clamp = std::nullopt) {
  const reference::Layer layer = weights.layer(clamp);
  reference::ErrorSummary summary;
  for (size_t r = 0; r < tokens.size(); ++r) {
    if (!results[r].status.ok()) return {false, fmt::format("rank {}: {}", r, results[r].status.message())};
    const reference::Input input = tokens[r].input();
    std::vector<reference::RowError> errors(tokens[r].num_tokens);
    in_parallel(tokens[r].num_tokens, [&](uint64_t token) {
      std::vector<double> expected(shape.hidden);
      reference::forward_row(layer, input, token, reference::Mode::kContract, expected.data());
      errors[token] =
          reference::row_error(results[r].output.data() + token * shape.hidden, expected.data(), shape.hidden);
    });
    for (uint64_t token = 0; token < errors.size(); ++token) summary.add(token, errors[token]);
  }
  return {summary.max_row_rel_l2 <= row_limit(shape),
          fmt::format("{} rows, worst {:.2e} (limit {:.1e}), mean {:.2e}", summary.rows_checked, summary.max_row_rel_l2,
                      row_limit(shape), summary.mean_row_rel_l2)};
}

bool same_bits(const std::vector<CallResult>& a, const std::vector<CallResult>& b) {
  for (size_t r = 0; r < a.size(); ++r)
    if (!a[r].status.ok() || !b[r].status.ok() || a[r].output != b[r].output) return false;
  return true;
}

/// All ranks' rows one after the other.
std::vector<uint16_t> joined(const std::vector<CallResult>& results) {
  std::vector<uint16_t> all;
  for (const CallResult& result : results) all.insert(all.end(), result.output.begin(), result.output.end());
  return all;
}

/// Cuts one batch into the tokens of `num_ranks` ranks.
std::vector<TestTokens> cut(const MoeShape& shape, const TestTokens& all, uint32_t num_ranks) {
  std::vector<TestTokens> parts(num_ranks);
  uint64_t first = 0;
  for (uint32_t r = 0; r < num_ranks; ++r) {
    const uint64_t end = all.num_tokens * (r + 1) / num_ranks, count = end - first;
    TestTokens& part = parts[r];
    part.num_tokens = count;
    part.hidden.assign(all.hidden.begin() + first * shape.hidden, all.hidden.begin() + end * shape.hidden);
    part.topk_ids.assign(all.topk_ids.begin() + first * shape.top_k, all.topk_ids.begin() + end * shape.top_k);
    part.topk_weights.assign(all.topk_weights.begin() + first * shape.top_k,
                             all.topk_weights.begin() + end * shape.top_k);
    first = end;
  }
  return parts;
}

constexpr MoeShape kOneExpert{256, 128, 1, 1};
constexpr MoeShape kTiny{256, 128, 4, 2};
constexpr MoeShape kOdd{640, 192, 8, 4};  // neither H % 256 nor I % 128 is 0
constexpr MoeShape kMedium{1024, 1024, 16, 6};

std::string first_status(const std::vector<CallResult>& results) {
  for (const CallResult& result : results)
    if (!result.status.ok()) return result.status.message();
  return "ok";
}

Outcome oracle(const MoeShape& shape, uint64_t num_tokens, const sm90::KernelInstance* instance, uint32_t num_ranks,
               Entrance entrance) {
  const TestWeights weights = test::gen_weights(shape, 11);
  const TestTokens all = test::gen_tokens(shape, num_tokens, 12);
  Rig rig(check_config(shape, static_cast<uint32_t>(num_tokens)), num_ranks, instance);
  rig.load(weights);
  const std::vector<TestTokens> tokens = cut(shape, all, num_ranks);
  return against_oracle(shape, weights, tokens, rig.run(tokens, entrance));
}

/// The same batch on 1, 2, 4 and 8 ranks and by every instance.
Outcome equal_everywhere() {
  const MoeShape& shape = kMedium;
  const TestWeights weights = test::gen_weights(shape, 21);
  const TestTokens all = test::gen_tokens(shape, 150, 22);
  std::vector<uint16_t> want;
  std::string text;
  bool passed = true;
  for (const Instance& i : instances()) {
    for (const uint32_t num_ranks : {1u, 2u, 4u, 8u}) {
      Rig rig(check_config(shape, 150), num_ranks, i.instance);
      rig.load(weights);
      const std::vector<CallResult> results = rig.run(cut(shape, all, num_ranks));
      const std::vector<uint16_t> got = joined(results);
      if (want.empty()) want = got;
      if (got == want && results[0].status.ok()) continue;
      passed = false;
      uint64_t different = 0;
      for (size_t n = 0; n < got.size(); ++n) different += got[n] != want[n] ? 1 : 0;
      text += fmt::format(" {} with {} ranks: {} of {} elements differ ({});", i.name, num_ranks, different, got.size(),
                          first_status(results));
    }
  }
  return {passed, passed ? "4 instances x 1, 2, 4, 8 ranks: the same bits" : text};
}

Outcome back_to_back(uint32_t num_ranks, uint32_t num_calls) {
  const MoeShape& shape = kMedium;
  const TestWeights weights = test::gen_weights(shape, 31);
  Rig rig(check_config(shape, 64), num_ranks);
  rig.load(weights);
  const std::vector<TestTokens> a = cut(shape, test::gen_tokens(shape, 64, 32), num_ranks);
  const std::vector<TestTokens> b = cut(shape, test::gen_tokens(shape, 17, 33), num_ranks);
  const std::vector<CallResult> want_a = rig.run(a), want_b = rig.run(b);
  for (uint32_t call = 0; call < num_calls; ++call) {
    const bool even = call % 2 == 0;
    const std::vector<CallResult> got = rig.run(even ? a : b);
    if (!same_bits(got, even ? want_a : want_b))
      return {false, fmt::format("call {} differs from the first one: {}", call, first_status(got))};
  }
  const Outcome right = against_oracle(shape, weights, a, want_a);
  return {right.passed, fmt::format("{} calls of two sizes in turn, the same bits; {}", num_calls, right.text)};
}

Outcome uneven_and_masked() {
  const MoeShape& shape = kOdd;
  const TestWeights weights = test::gen_weights(shape, 41);
  std::vector<TestTokens> tokens;
  for (const uint64_t count : {0u, 5u, 33u, 1u}) tokens.push_back(test::gen_tokens(shape, count, 42 + count));
  for (TestTokens& mine : tokens) {
    for (size_t i = 0; i < mine.topk_ids.size(); i += 3) {
      mine.topk_ids[i] = -1;
      mine.topk_weights[i] = std::nanf("");
    }
    for (size_t i = 0; i < mine.topk_ids.size() && i < shape.top_k; ++i)
      mine.topk_ids[i] = -1;  // a token without experts
  }
  Rig rig(check_config(shape, 40), 4);
  rig.load(weights);
  return against_oracle(shape, weights, tokens, rig.run(tokens));
}

/// All slots to one expert, through rings of the smallest size.
Outcome skew_in_small_rings(const sm90::KernelInstance* instance) {
  const MoeShape shape{512, 256, 8, 2};
  const TestWeights weights = test::gen_weights(shape, 51);
  LayerConfig config = check_config(shape, 700);
  config.unit_blocks = 1;
  config.lag_units = 3;
  config.token_ring_blocks = 2;
  config.act_ring_blocks = 2;
  TestTokens all = test::gen_tokens(shape, 1400, 52);
  for (size_t i = 0; i < all.topk_ids.size(); ++i) all.topk_ids[i] = i % 7 == 0 ? 3 : 5;
  Rig rig(config, 2, instance);
  rig.load(weights);
  const std::vector<TestTokens> tokens = cut(shape, all, 2);
  return against_oracle(shape, weights, tokens, rig.run(tokens));
}

/// The calls after a refused one are right too: both banks of counters are used again.
Outcome refuses_bad_id(uint32_t num_ranks) {
  const MoeShape& shape = kTiny;
  Rig rig(check_config(shape, 20), num_ranks);
  const TestWeights weights = test::gen_weights(shape, 61);
  rig.load(weights);
  const std::vector<TestTokens> good = cut(shape, test::gen_tokens(shape, 20, 62), num_ranks);
  std::vector<TestTokens> bad = good;
  bad.back().topk_ids[7] = 4;
  Outcome before = against_oracle(shape, weights, good, rig.run(good));
  const std::vector<CallResult> refused = rig.run(bad);
  const Status& own = refused.back().status;
  bool told = own.code() == Code::kInvalidArgument &&
              own.message().find(fmt::format("got 4 at rank {}, token 3, slot 1", num_ranks - 1)) != std::string::npos;
  bool untouched = true;
  for (const CallResult& result : refused) {
    told = told && (&result == &refused.back() || result.status.code() == Code::kPeerFailed);
    for (const uint16_t element : result.output) untouched = untouched && element == 0xffff;
  }
  Outcome after = before;
  for (int call = 0; call < 4 && after.passed; ++call) after = against_oracle(shape, weights, good, rig.run(good));
  return {told && untouched && before.passed && after.passed,
          fmt::format("\"{}\"; output {}; four calls later: {}", own.message(), untouched ? "untouched" : "WRITTEN",
                      after.text)};
}

Outcome absent_rank() {
  const MoeShape& shape = kTiny;
  Rig rig(check_config(shape, 16), 3 - 1);
  const TestWeights weights = test::gen_weights(shape, 71);
  rig.load(weights);
  const std::vector<TestTokens> tokens = cut(shape, test::gen_tokens(shape, 20, 72), 2);
  const std::vector<CallResult> first = rig.run(tokens);
  const std::vector<CallResult> alone = rig.run(tokens, Entrance::kBf16, 1, 500'000'000);
  const Status& status = alone[0].status;
  const bool timed_out = status.code() == Code::kTimeout && rig.rank(0).cut_short() &&
                         status.message().find("rank 1") != std::string::npos;
  rig.reset();
  const std::vector<CallResult> again = rig.run(tokens);
  return {timed_out && same_bits(first, again), fmt::format("\"{}\"; after reset {}", status.message(),
                                                            same_bits(first, again) ? "the same bits" : "DIFFERENT")};
}

Outcome weight_layouts() {
  const MoeShape& shape = kOdd;
  const TestWeights gate_up = test::gen_weights(shape, 81);
  const std::vector<TestTokens> tokens = {test::gen_tokens(shape, 30, 82)};
  Rig rig(check_config(shape, 30), 1);
  rig.load(gate_up);
  const std::vector<CallResult> want = rig.run(tokens);
  Outcome outcome = against_oracle(shape, gate_up, tokens, want, std::nullopt);
  const uint64_t h = shape.hidden, i = shape.intermediate, scales = gate_up.w13_scales_per_expert();
  for (const W13Layout layout : {W13Layout::kUpGate, W13Layout::kInterleaved1, W13Layout::kInterleaved8}) {
    TestWeights other = gate_up;
    for (uint64_t e = 0; e < shape.num_experts; ++e) {
      for (uint64_t row = 0; row < 2 * i; ++row) {
        const uint64_t up = row / i, n = row % i;
        const uint64_t to = layout == W13Layout::kUpGate         ? (1 - up) * i + n
                            : layout == W13Layout::kInterleaved1 ? 2 * n + up
                                                                 : n / 8 * 16 + up * 8 + n % 8;
        std::memcpy(&other.w13[(e * 2 * i + to) * h], &gate_up.w13[(e * 2 * i + row) * h], h);
      }
      if (layout == W13Layout::kUpGate)
        std::rotate(other.w13_scale.begin() + e * scales, other.w13_scale.begin() + e * scales + scales / 2,
                    other.w13_scale.begin() + (e + 1) * scales);
    }
    rig.load(other, layout);
    if (!same_bits(want, rig.run(tokens)))
      return {false, fmt::format("layout {} gives other bits than gate_up", static_cast<int>(layout))};
  }
  outcome.text = "4 layouts, the same bits; " + outcome.text;
  return outcome;
}

Outcome entrances() {
  const MoeShape& shape = kMedium;
  const TestWeights weights = test::gen_weights(shape, 91);
  std::string text;
  for (const uint32_t num_ranks : {1u, 2u}) {
    const std::vector<TestTokens> tokens = cut(shape, test::gen_tokens(shape, 70, 92), num_ranks);
    Rig rig(check_config(shape, 70), num_ranks);
    rig.load(weights);
    const std::vector<CallResult> want = rig.run(tokens);
    if (!same_bits(want, rig.run(tokens, Entrance::kFp8)))
      return {false, fmt::format("{} ranks: E4M3 tokens give other bits than BF16", num_ranks)};
    if (!same_bits(want, rig.run(tokens, Entrance::kFp8Views)))
      return {false, fmt::format("{} ranks: E4M3 views give other bits than BF16", num_ranks)};
  }
  return {true, "BF16, E4M3 and E4M3 in the workspace's views: the same bits on 1 and 2 ranks"};
}

Outcome clamped() {
  const MoeShape& shape = kTiny;
  const TestWeights weights = test::gen_weights(shape, 101);
  LayerConfig config = check_config(shape, 40);
  config.swiglu_clamp = 0.25f;
  Rig rig(config, 1);
  rig.load(weights);
  const std::vector<TestTokens> tokens = {test::gen_tokens(shape, 40, 102)};
  return against_oracle(shape, weights, tokens, rig.run(tokens), 0.25f);
}

/// Codes, scales and rows between the stages, against the oracle continued from what the device itself had.
Outcome stages(const sm90::KernelInstance* instance) {
  const MoeShape& shape = kMedium;
  const TestWeights weights = test::gen_weights(shape, 111);
  const std::vector<TestTokens> tokens = {test::gen_tokens(shape, 60, 112)};
  Rig rig(check_config(shape, 60), 1, instance);
  rig.load(weights);
  const std::vector<CallResult> results = rig.run(tokens);
  if (!results[0].status.ok()) return {false, results[0].status.message()};
  const protocol::RankView& view = rig.rank(0).view();
  const auto fetch = [&](const auto& region) {
    std::vector<std::remove_pointer_t<decltype(region.in(nullptr))>> host(region.count);
    check_cuda(static_cast<int>(cudaMemcpy(host.data(), region.in(view.own()), region.bytes(), cudaMemcpyDeviceToHost)),
               "fetch");
    return host;
  };
  const auto first_block = fetch(view.layout.expert_first_block), rows = fetch(view.layout.expert_num_rows);
  const auto meta = fetch(view.layout.row_meta);
  const auto codes = fetch(view.layout.act_codes);
  const auto scales = fetch(view.layout.act_scales);
  const auto combine = fetch(view.layout.combine_rows);
  const auto in_codes = fetch(view.layout.input_codes);
  const auto in_scales = fetch(view.layout.input_scales);
  const reference::Layer layer = weights.layer();
  const reference::Input input = tokens[0].input();
  const uint32_t h = shape.hidden, i = shape.intermediate, room_m = view.spec.room_m(), groups = i / 128;
  const protocol::BlockCut cut = view.spec.cut();
  uint64_t num_codes = 0, neighbours = 0, far = 0, wrong_inputs = 0;
  double worst_scale = 0, worst_row = 0, worst_far = 0;
  const auto order = [](uint8_t code) { return code & 0x80 ? -(code & 0x7f) : code & 0x7f; };
  for (uint32_t token = 0; token < tokens[0].num_tokens; ++token) {
    const reference::QuantizedRow x = reference::input_row(layer, input, token);
    wrong_inputs += std::memcmp(x.codes.data(), &in_codes[uint64_t{token} * h], h) != 0 ||
                    std::memcmp(x.scales.data(), &in_scales[uint64_t{token} * (h / 128)], h / 128 * 4) != 0;
  }
  for (uint32_t expert = 0; expert < shape.num_experts; ++expert) {
    for (uint32_t n = 0; n < rows[expert]; ++n) {
      const uint32_t block = cut.block_of(n, cut.num_blocks(rows[expert]));
      const uint64_t row = uint64_t{first_block[expert] + block} * room_m + (n - block * cut.block_m);
      const uint32_t token = meta[row].token_slot / shape.top_k, slot = meta[row].token_slot % shape.top_k;
      const reference::QuantizedRow want =
          reference::intermediate_row(layer, expert, reference::input_row(layer, input, token), meta[row].weight);
      reference::QuantizedRow have;
      have.codes.assign(codes.begin() + row * i, codes.begin() + (row + 1) * i);
      for (uint32_t g = 0; g < groups; ++g) {
        have.scales.push_back(scales[(row / room_m * groups + g) * room_m + row % room_m]);
        worst_scale = std::max(worst_scale, std::fabs(have.scales[g] / want.scales[g] - 1.0));
      }
      for (uint32_t c = 0; c < i; ++c) {
        const int distance = std::abs(order(have.codes[c]) - order(want.codes[c]));
        ++num_codes;
        neighbours += distance == 1 ? 1 : 0;
        far += distance > 1 ? 1 : 0;
        if (distance > 1)
          worst_far = std::max<double>(worst_far,
                                       std::fabs(core::e4m3_decode(have.codes[c]) - core::e4m3_decode(want.codes[c])));
      }
      std::vector<double> down(h);
      reference::down_row(layer, expert, have, down.data());
      const uint16_t* got = combine.data() + (uint64_t{slot} * view.spec.max_tokens + token) * h;
      worst_row = std::max(worst_row, reference::row_error(got, down.data(), h).rel_l2);
    }
  }
  const double share = static_cast<double>(neighbours) / static_cast<double>(std::max<uint64_t>(1, num_codes));
  // Close to zero a code's step is far below the error of the sums, which is relative to the group's largest value
  // (448).
  return {wrong_inputs == 0 && worst_far <= 0.5 && share <= 0.03 && worst_scale <= 1e-3 && worst_row <= 4e-3 &&
              num_codes > 0,
          fmt::format(
              "input rows that differ {}; codes: {:.2f}% neighbours, {} of {} further off, by at most {:.2g} of 448; "
              "scales within {:.1e}; rows from the device's codes within {:.1e}",
              wrong_inputs, share * 100, far, num_codes, worst_far, worst_scale, worst_row)};
}

/// What lies in the workspace's data regions does not matter.
Outcome poisoned_pools() {
  const MoeShape& shape = kOdd;
  const TestWeights weights = test::gen_weights(shape, 121);
  const std::vector<TestTokens> tokens = cut(shape, test::gen_tokens(shape, 60, 122), 2);
  Rig rig(check_config(shape, 40), 2);
  rig.load(weights);
  const std::vector<CallResult> want = rig.run(tokens);
  for (const int byte : {0xff, 0x7f, 0x00}) {
    for (uint32_t r = 0; r < 2; ++r) {
      const protocol::RankView& view = rig.rank(r).view();
      const auto fill = [&](const auto& region) {
        check_cuda(static_cast<int>(cudaMemset(region.in(view.own()), byte, region.bytes())), "poison");
      };
      fill(view.layout.pool_codes);
      fill(view.layout.pool_scales);
      fill(view.layout.act_codes);
      fill(view.layout.act_scales);
      fill(view.layout.combine_rows);
      fill(view.layout.input_codes);
      fill(view.layout.input_scales);
      fill(view.layout.row_meta);
      fill(view.layout.slot_list);
    }
    if (!same_bits(want, rig.run(tokens))) return {false, fmt::format("other bits over bytes {:#04x}", byte)};
  }
  return against_oracle(shape, weights, tokens, want);
}

/// One call captured in a graph and replayed: each replay is a new call.
Outcome graph_replay() {
  const MoeShape& shape = kMedium;
  const TestWeights weights = test::gen_weights(shape, 131);
  const std::vector<TestTokens> tokens = {test::gen_tokens(shape, 50, 132)};
  Rig rig(check_config(shape, 64), 1);
  rig.load(weights);
  const std::vector<CallResult> want = rig.run(tokens);
  const int64_t t = 50, h = shape.hidden, k = shape.top_k;
  const DeviceBuffer hidden(tokens[0].hidden.data(), tokens[0].hidden.size() * 2);
  const DeviceBuffer ids(tokens[0].topk_ids.data(), tokens[0].topk_ids.size() * 8);
  const DeviceBuffer topk_weights(tokens[0].topk_weights.data(), tokens[0].topk_weights.size() * 4);
  DeviceBuffer output(tokens[0].hidden.size() * 2);
  ForwardArgs args;
  args.hidden_states = TensorView::dense(hidden.data(), DType::kBFloat16, {t, h});
  args.topk_ids = TensorView::dense(ids.data(), DType::kInt64, {t, k});
  args.topk_weights = TensorView::dense(topk_weights.data(), DType::kFloat32, {t, k});
  args.output = TensorView::dense(output.data(), DType::kBFloat16, {t, h});
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check_cuda(static_cast<int>(cudaStreamCreate(&stream)), "stream");
  check_cuda(static_cast<int>(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)), "capture");
  const Status status = rig.rank(0).enqueue(args, {}, stream);
  if (!status.ok()) return {false, status.message()};
  check_cuda(static_cast<int>(cudaStreamEndCapture(stream, &graph)), "capture");
  check_cuda(static_cast<int>(cudaGraphInstantiate(&executable, graph)), "instantiate");
  std::vector<uint16_t> got(want[0].output.size());
  for (int replay = 0; replay < 50; ++replay) {
    output.fill(0xff);
    check_cuda(static_cast<int>(cudaGraphLaunch(executable, stream)), "replay");
    check_cuda(static_cast<int>(cudaStreamSynchronize(stream)), "replay");
    output.fetch(got.data(), got.size() * 2);
    if (!rig.rank(0).finish().ok() || got != want[0].output) return {false, fmt::format("replay {} differs", replay)};
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return {true, "50 replays, the same bits as a plain call"};
}

}  // namespace

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  checks.push_back({"smoke.m128", [] { return oracle(kTiny, 3, &sm90::m128_instance(), 1, Entrance::kBf16); }});
  for (const Instance& i : instances()) {
    const sm90::KernelInstance* instance = i.instance;
    const auto add = [&](const char* what, const MoeShape& shape, uint64_t num_tokens, uint32_t num_ranks) {
      checks.push_back({fmt::format("oracle.{}.{}.{}_tokens.{}_ranks", i.name, what, num_tokens, num_ranks),
                        [=] { return oracle(shape, num_tokens, instance, num_ranks, Entrance::kBf16); }});
    };
    add("tiny", kTiny, 3, 1);
    add("odd", kOdd, 77, 1);
    add("medium", kMedium, 300, 1);
    add("odd", kOdd, 90, 2);
    // Around the most rows that a half and a whole last tile hold, with their further rows.
    for (const uint64_t rows : {65, 80, 81, 129, 144, 145, 273}) add("one_expert", kOneExpert, rows, 1);
    checks.push_back({fmt::format("stages.{}", i.name), [=] { return stages(instance); }});
    checks.push_back({fmt::format("skew_in_small_rings.{}", i.name), [=] { return skew_in_small_rings(instance); }});
  }
  checks.push_back(
      {"oracle.m128.medium.fp8", [] { return oracle(kMedium, 40, &sm90::m128_instance(), 1, Entrance::kFp8); }});
  // With source lines, for the sanitizers: tiles of up to 64 rows, which warpgroups split by columns, and full ones.
  checks.push_back({"oracle.m128_chaos.split_tiles",
                    [] { return oracle(kTiny, 3, &sm90::m128_chaos_instance(), 1, Entrance::kBf16); }});
  checks.push_back({"oracle.m128_chaos.full_tiles",
                    [] { return oracle(kOneExpert, 200, &sm90::m128_chaos_instance(), 1, Entrance::kBf16); }});
  checks.push_back({"entrances", [] { return entrances(); }});
  checks.push_back({"weight_layouts", [] { return weight_layouts(); }});
  checks.push_back({"clamped", [] { return clamped(); }});
  checks.push_back({"uneven_and_masked", [] { return uneven_and_masked(); }});
  checks.push_back({"equal_everywhere", [] { return equal_everywhere(); }});
  checks.push_back({"back_to_back.1_rank", [] { return back_to_back(1, 1000); }});
  checks.push_back({"back_to_back.4_ranks", [] { return back_to_back(4, 1000); }});
  checks.push_back({"poisoned_pools", [] { return poisoned_pools(); }});
  checks.push_back({"graph_replay", [] { return graph_replay(); }});
  for (const uint32_t ranks : {1, 2})
    checks.push_back({fmt::format("refuses_bad_id.{}_ranks", ranks), [=] { return refuses_bad_id(ranks); }});
  checks.push_back({"absent_rank", [] { return absent_rank(); }});
  for (const auto& more : {layer_checks(), slice_checks(), stream_checks(), stress_checks()})
    for (const Check& check : more) checks.push_back(check);
  return checks;
}

}  // namespace megamoe::device_check
