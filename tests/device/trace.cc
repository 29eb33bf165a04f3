// Where the time of one call of a slice goes, by role: a cold call of the trace variant, as a table of its events.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "api/models.h"
#include "bench/gpu_data.h"
#include "device/checks.h"
#include "device/rig.h"

namespace megamoe::device_check {
namespace {

template <class T>
T must(Result<T> made) {
  if (made.ok()) return std::move(made).value();
  std::printf("FAIL trace: %s\n", made.status().message().c_str());
  std::_Exit(1);
}

void must(const Status& status) {
  if (!status.ok()) must(Result<int>(status));
}

/// Distinct experts per token, uniform.
std::vector<int32_t> routing(uint32_t num_tokens, uint32_t num_experts, uint32_t top_k, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(num_tokens * top_k), experts(num_experts);
  for (uint32_t e = 0; e < num_experts; ++e) experts[e] = static_cast<int32_t>(e);
  for (uint32_t token = 0; token < num_tokens; ++token) {
    for (uint32_t slot = 0; slot < top_k; ++slot) {
      std::swap(experts[slot], experts[slot + random() % (num_experts - slot)]);
      ids[token * top_k + slot] = experts[slot];
    }
  }
  return ids;
}

/// All rings, one behind the other.
std::vector<sm90::TraceRecord> fetch(const DeviceBuffer& trace) {
  std::vector<sm90::TraceRecord> records(trace.bytes() / sizeof(sm90::TraceRecord));
  trace.fetch(records.data(), trace.bytes());
  return records;
}

/// For each event: how often, from when to when, and how long on average (us after the first line of the trace).
void print_trace(const std::vector<sm90::TraceRecord>& records, uint32_t num_rings, uint32_t capacity) {
  constexpr auto kEvents = static_cast<uint32_t>(protocol::Event::kCount);
  struct Line {
    uint32_t begins = 0, ends = 0, pairs = 0;
    double first_begin = 1e30, last_begin = 0, first_end = 1e30, last_end = 0, sum = 0, longest = 0;
  } lines[kEvents];
  uint64_t origin = UINT64_MAX, last = 0;
  for (const sm90::TraceRecord& r : records)
    if (r.time_ns != 0) origin = std::min(origin, r.time_ns), last = std::max(last, r.time_ns);
  for (uint32_t ring = 0; ring < num_rings; ++ring) {
    std::vector<sm90::TraceRecord> mine;
    for (uint32_t i = 0; i < capacity; ++i)
      if (records[uint64_t{ring} * capacity + i].time_ns != 0) mine.push_back(records[uint64_t{ring} * capacity + i]);
    std::stable_sort(mine.begin(), mine.end(), [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
    double open[kEvents];
    std::fill(open, open + kEvents, -1.0);
    for (const sm90::TraceRecord& r : mine) {
      const auto event = static_cast<uint32_t>(r.event);
      if (event >= kEvents) continue;
      Line& line = lines[event];
      const double us = static_cast<double>(r.time_ns - origin) * 1e-3;
      if (r.is_end == 0) {
        ++line.begins;
        line.first_begin = std::min(line.first_begin, us);
        line.last_begin = std::max(line.last_begin, us);
        open[event] = us;
      } else {
        ++line.ends;
        line.first_end = std::min(line.first_end, us);
        line.last_end = std::max(line.last_end, us);
        if (open[event] >= 0) {
          ++line.pairs;
          line.sum += us - open[event];
          line.longest = std::max(line.longest, us - open[event]);
        }
        open[event] = -1;
      }
    }
  }
  std::printf("  trace: %.1f us between first and last line\n", static_cast<double>(last - origin) * 1e-3);
  for (uint32_t event = 0; event < kEvents; ++event) {
    const Line& l = lines[event];
    if (l.begins + l.ends == 0) continue;
    std::printf("  %-14s begins %6u [%8.1f .. %8.1f] ends %6u [%8.1f .. %8.1f] mean %8.2f longest %8.1f\n",
                protocol::name(static_cast<protocol::Event>(event)), l.begins, l.begins ? l.first_begin : 0,
                l.last_begin, l.ends, l.ends ? l.first_end : 0, l.last_end, l.pairs ? l.sum / l.pairs : 0, l.longest);
  }
}

/// Every line as it was written: STEM.lines with warp (of the grid), time in ns, value, event and whether it ends;
/// STEM.ids with the experts that were chosen.
void write_lines(const std::vector<sm90::TraceRecord>& records, uint32_t capacity, const std::vector<int32_t>& ids,
                 const std::string& stem) {
  std::ofstream lines(stem + ".lines"), chosen(stem + ".ids");
  for (uint64_t i = 0; i < records.size(); ++i) {
    const sm90::TraceRecord& r = records[i];
    if (r.time_ns == 0) continue;
    lines << i / capacity << ' ' << r.time_ns << ' ' << r.value << ' ' << protocol::name(r.event) << ' '
          << static_cast<int>(r.is_end) << '\n';
  }
  for (const int32_t id : ids) chosen << id << '\n';
}

/// The second of two calls, after the L2 was flushed; the first one warms up what is made once.
void trace_tokens(Rig& rig, const std::string& name, uint32_t num_tokens, const sm90::KernelInstance& instance) {
  constexpr uint32_t kCapacity = 8192;
  const MoeShape& s = rig.config().shape;
  const int64_t t = num_tokens, h = s.hidden, k = s.top_k;
  const uint32_t num_rings = rig.rank(0).num_ctas() * instance.spec.plan.num_warps();
  DeviceBuffer trace(uint64_t{num_rings} * kCapacity * sizeof(sm90::TraceRecord)), flush(256 << 20);
  rig.rank(0).set_trace(static_cast<sm90::TraceRecord*>(trace.data()), kCapacity);
  DeviceBuffer ids(uint64_t{num_tokens} * s.top_k * 4), output(uint64_t{num_tokens} * s.hidden * 2);
  const bench::DeviceBuffer codes = must(bench::random_codes(uint64_t{num_tokens} * s.hidden, 6));
  const bench::DeviceBuffer scales = must(bench::random_floats(uint64_t{num_tokens} * s.hidden / 128, 5e-3f, 7));
  const bench::DeviceBuffer weights =
      must(bench::random_floats(uint64_t{num_tokens} * s.top_k, 1.0f / static_cast<float>(s.top_k), 5));
  ForwardArgs args;
  args.hidden_states = TensorView::dense(codes.data(), DType::kFloat8E4M3, {t, h});
  args.hidden_states_scale = TensorView::dense(scales.data(), DType::kFloat32, {t, h / 128});
  args.scale_format = ScaleFormat::kFloat32;
  args.topk_ids = TensorView::dense(ids.data(), DType::kInt32, {t, k});
  args.topk_weights = TensorView::dense(weights.data(), DType::kFloat32, {t, k});
  args.output = TensorView::dense(output.data(), DType::kBFloat16, {t, h});
  std::vector<int32_t> routed;
  for (int n = 0; n < 2; ++n) {
    routed = routing(num_tokens, s.num_experts, s.top_k, 1000 * num_tokens + n);
    check_cuda(cudaMemcpy(ids.data(), routed.data(), routed.size() * 4, cudaMemcpyHostToDevice), "ids");
    trace.fill(0);
    flush.fill(n);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    must(rig.rank(0).forward(args, {}));
  }
  std::printf("trace %s %s %u tokens\n", name.c_str(), instance.spec.name, num_tokens);
  const std::vector<sm90::TraceRecord> records = fetch(trace);
  if (const char* folder = std::getenv("MEGAMOE_TRACE_FOLDER"))
    write_lines(records, kCapacity, routed, std::string(folder) + "/" + name + "_" + std::to_string(num_tokens));
  print_trace(records, num_rings, kCapacity);
}

}  // namespace

void trace(const std::string& model, const std::vector<uint32_t>& tokens) {
  const MoeShape s = must(api::find_model(model)).shape;
  const int64_t e = s.num_experts, h = s.hidden, i = s.intermediate;
  const bench::DeviceBuffer w13 = must(bench::random_codes(uint64_t(e * 2 * i * h), 1));
  const bench::DeviceBuffer w2 = must(bench::random_codes(uint64_t(e * h * i), 2));
  const bench::DeviceBuffer w13_scale = must(bench::random_floats(uint64_t(e * 2 * (i / 128) * (h / 128)), 1e-4f, 3));
  const bench::DeviceBuffer w2_scale = must(bench::random_floats(uint64_t(e * (h / 128) * (i / 128)), 1e-4f, 4));
  ExpertWeights weights;
  weights.w13 = TensorView::dense(w13.data(), DType::kFloat8E4M3, {e, 2 * i, h});
  weights.w13_scale = TensorView::dense(w13_scale.data(), DType::kFloat32, {e, 2, i / 128, h / 128});
  weights.w2 = TensorView::dense(w2.data(), DType::kFloat8E4M3, {e, h, i});
  weights.w2_scale = TensorView::dense(w2_scale.data(), DType::kFloat32, {e, h / 128, i / 128});
  weights.w13_layout = W13Layout::kGateUp;
  weights.scale_format = ScaleFormat::kFloat32;
  LayerConfig config;
  config.shape = s;
  config.max_tokens_per_rank = *std::max_element(tokens.begin(), tokens.end());
  config.timeout_ns = 4'000'000'000;
  const sm90::KernelInstance& instance = sm90::m128_trace_instance();
  Rig rig(config, 1, &instance);
  must(rig.rank(0).load_weights(weights));
  for (const uint32_t num_tokens : tokens) trace_tokens(rig, model, num_tokens, instance);
}

}  // namespace megamoe::device_check
