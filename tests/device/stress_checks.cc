// What only shows over time or beside other work: late and absent ranks, pauses at random, other kernels, streams and
// graphs, hundreds of calls.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "device/checks.h"
#include "device/oracle.h"

namespace megamoe::device_check {
namespace {

using Batch = std::vector<std::unique_ptr<DeviceTokens>>;  // by rank

Batch make_batch(const MoeShape& shape, const std::vector<uint32_t>& counts, uint64_t seed) {
  Batch batch;
  for (const uint32_t count : counts) batch.push_back(std::make_unique<DeviceTokens>(shape, count, seed++));
  return batch;
}

std::vector<ForwardArgs> args_of(const Batch& batch) {
  std::vector<ForwardArgs> args;
  for (const auto& mine : batch) args.push_back(mine->args());
  return args;
}

Status first_error(const std::vector<Status>& statuses) {
  for (const Status& status : statuses)
    if (!status.ok()) return status;
  return {};
}

/// What a batch's outputs are, kept to compare later ones with.
std::vector<DeviceBuffer> copy_outputs(const Batch& batch) {
  std::vector<DeviceBuffer> copies;
  for (const auto& mine : batch) {
    copies.emplace_back(mine->output.bytes());
    check_cuda(static_cast<int>(cudaMemcpy(copies.back().data(), mine->output.data(), mine->output.bytes(),
                                           cudaMemcpyDeviceToDevice)),
               "copy of outputs");
  }
  return copies;
}

uint64_t differing_rows(const Batch& batch, const std::vector<DeviceBuffer>& want) {
  uint64_t rows = 0;
  for (size_t rank = 0; rank < batch.size(); ++rank) {
    const DeviceTokens& mine = *batch[rank];
    if (mine.num_tokens == 0) continue;
    rows += count_differing_rows(mine.output.data(), want[rank].data(), mine.num_tokens, mine.num_tokens,
                                 mine.shape.hidden * 2);
  }
  return rows;
}

void poison(const Batch& batch) {
  for (const auto& mine : batch) mine->poison();
}

double worst_row(const DeviceOracle& oracle, const Batch& batch, uint32_t most_rows) {
  double worst = 0;
  for (const auto& mine : batch) {
    std::vector<uint32_t> rows;
    for (uint32_t i = 0; i < std::min(mine->num_tokens, most_rows); ++i)
      rows.push_back(static_cast<uint32_t>(uint64_t{i} * mine->num_tokens / std::min(mine->num_tokens, most_rows)));
    worst = std::max(worst, oracle.judge_rows(*mine, rows).worst);
  }
  return worst;
}

constexpr MoeShape kSmall{512, 256, 16, 4};

/// Calls with the chaos instance give the bits of the default one.
Outcome chaos(uint32_t num_ranks, uint32_t num_calls, bool small_rings) {
  const DeviceWeights weights(kSmall, 41);
  constexpr uint32_t kCapacity = 700;  // more input blocks than CTAs with four ranks
  LayerConfig config = check_config(kSmall, kCapacity);
  if (small_rings) config.unit_blocks = config.token_ring_blocks = config.act_ring_blocks = 1;
  std::vector<Batch> batches;
  std::vector<std::vector<DeviceBuffer>> want;
  {
    Rig plain(config, num_ranks, &sm90::m128_instance());
    plain.load(weights);
    for (uint32_t i = 0; i < 4; ++i) {
      std::vector<uint32_t> counts;
      for (uint32_t rank = 0; rank < num_ranks; ++rank)
        counts.push_back(static_cast<uint32_t>(test::splitmix64(100 * i + rank) % (i == 0 ? 8 : kCapacity + 1)));
      batches.push_back(make_batch(kSmall, counts, 1000 * i));
      if (const Status status = first_error(plain.forward(args_of(batches[i]))); !status.ok())
        return {false, status.message()};
      want.push_back(copy_outputs(batches[i]));
    }
  }
  Rig rig(config, num_ranks, &sm90::m128_chaos_instance());
  rig.load(weights);
  for (uint32_t call = 0; call < num_calls; ++call) {
    const Batch& batch = batches[call % batches.size()];
    poison(batch);
    if (const Status status = first_error(rig.forward(args_of(batch))); !status.ok())
      return {false, fmt::format("call {}: {}", call, status.message())};
    if (const uint64_t rows = differing_rows(batch, want[call % batches.size()]); rows != 0)
      return {false, fmt::format("call {}: {} rows differ from m128", call, rows)};
  }
  return {true, fmt::format("{} calls of 4 batches on {} ranks{}, the bits of m128", num_calls, num_ranks,
                            small_rings ? " through rings of one block" : "")};
}

/// A rank that comes 10 s late: the others wait for it.
Outcome delayed_rank() {
  constexpr MoeShape kShape{512, 256, 15, 4};
  const DeviceWeights weights(kShape, 51);
  Rig rig(check_config(kShape, 40), 3);
  rig.load(weights);
  const Batch batch = make_batch(kShape, {20, 33, 40}, 52);
  if (const Status status = first_error(rig.forward(args_of(batch))); !status.ok()) return {false, status.message()};
  const std::vector<DeviceBuffer> want = copy_outputs(batch);
  poison(batch);
  const auto start = std::chrono::steady_clock::now();
  const Status status = first_error(rig.forward(args_of(batch), [](uint32_t rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(10));
  }));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!status.ok()) return {false, status.message()};
  const uint64_t rows = differing_rows(batch, want);
  return {rows == 0 && seconds >= 10 && seconds < 11, fmt::format("{} rows differ after {:.2f} s", rows, seconds)};
}

/// One of four ranks does not come: every other one names it by its deadline; reset() makes the next call right.
Outcome absent_of_four() {
  const DeviceWeights weights(kSmall, 61);
  Rig rig(check_config(kSmall, 40), 4);
  rig.load(weights);
  const Batch batch = make_batch(kSmall, {20, 33, 40, 1}, 62);
  if (const Status status = first_error(rig.forward(args_of(batch))); !status.ok()) return {false, status.message()};
  const std::vector<DeviceBuffer> want = copy_outputs(batch);
  std::vector<ForwardArgs> args = args_of(batch);
  for (ForwardArgs& mine : args) mine.timeout_ns = 500'000'000;
  std::vector<Status> statuses(4);
  std::vector<std::thread> threads;
  const auto start = std::chrono::steady_clock::now();
  for (const uint32_t rank : {0u, 1u, 3u})
    threads.emplace_back([&, rank] { statuses[rank] = rig.rank(rank).forward(args[rank], {}); });
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bool named = true;
  for (const uint32_t rank : {0u, 1u, 3u})
    named = named && !statuses[rank].ok() && statuses[rank].message().find("from rank 2 ") != std::string::npos;
  rig.reset();
  poison(batch);
  const Status again = first_error(rig.forward(args_of(batch)));
  const uint64_t rows = again.ok() ? differing_rows(batch, want) : UINT64_MAX;
  return {named && seconds < 2.5 && rows == 0,
          fmt::format("after {:.2f} s: \"{}\"; \"{}\"; after reset {} rows differ", seconds, statuses[0].message(),
                      statuses[3].message(), rows)};
}

/// Once the context exists, the first call costs no more than 50 ms above the second.
Outcome first_call() {
  std::string text;
  bool passed = true;
  check_cuda(static_cast<int>(cudaFree(nullptr)), "context");
  const DeviceWeights weights(kSmall, 71);
  for (const auto* instance : {&sm90::m128_instance(), &sm90::m64_instance()}) {
    Rig rig(check_config(kSmall, 64), 1, instance);
    rig.load(weights);
    const Batch batch = make_batch(kSmall, {64}, 72);
    double ms[2];
    for (double& one : ms) {
      const auto start = std::chrono::steady_clock::now();
      if (const Status status = rig.forward(args_of(batch))[0]; !status.ok()) return {false, status.message()};
      one = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    }
    passed = passed && ms[0] <= ms[1] + 50;
    text += fmt::format("{}{}: first {:.2f} ms, second {:.2f} ms", text.empty() ? "" : "; ", instance->spec.name, ms[0],
                        ms[1]);
  }
  return {passed, text};
}

/// One token row in hundreds: rank 0 alone has tokens, all for two experts; or eight ranks with all experts.
Outcome no_spoiled_row(const MoeShape& shape, const std::vector<uint32_t>& counts, bool two_experts,
                       uint32_t num_calls) {
  const DeviceWeights weights(shape, 81);
  const DeviceOracle oracle(weights, std::nullopt);
  Rig rig(check_config(shape, 1024), static_cast<uint32_t>(counts.size()));
  rig.load(weights);
  const Batch batch = make_batch(shape, counts, 82);
  if (two_experts) {
    for (size_t i = 0; i < batch[0]->ids.size(); ++i) {
      batch[0]->ids[i] = static_cast<int64_t>(i % 2);
      batch[0]->router[i] = 1.0f;
    }
    batch[0]->upload();
  }
  if (const Status status = first_error(rig.forward(args_of(batch))); !status.ok()) return {false, status.message()};
  const std::vector<DeviceBuffer> want = copy_outputs(batch);
  const double worst = worst_row(oracle, batch, 64);
  uint64_t rows = 0;
  for (uint32_t call = 1; call < num_calls; ++call) {
    if (const Status status = first_error(rig.forward(args_of(batch))); !status.ok())
      return {false, fmt::format("call {}: {}", call, status.message())};
    rows += differing_rows(batch, want);
  }
  return {rows == 0 && worst <= row_limit(shape),
          fmt::format("{} calls on {} ranks: {} rows differ from the first call's; oracle {:.2e}", num_calls,
                      counts.size(), rows, worst)};
}

/// Other kernels hold one, eight or all SMs when a call comes, or take one again and again.
Outcome beside_other_kernels() {
  const DeviceWeights weights(kSmall, 91);
  Rig rig(check_config(kSmall, 64), 2);
  rig.load(weights);
  const Batch batch = make_batch(kSmall, {64, 64}, 92);
  if (const Status status = first_error(rig.forward(args_of(batch))); !status.ok()) return {false, status.message()};
  const std::vector<DeviceBuffer> want = copy_outputs(batch);
  cudaStream_t stream;
  check_cuda(static_cast<int>(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)), "stream");
  std::string text;
  bool passed = true;
  for (const uint32_t num_sms : {1u, 8u, 132u, 0u}) {
    poison(batch);
    hold_sms(std::max(1u, num_sms), num_sms != 0 ? 500'000'000 : 5'000'000, stream, true);
    for (int i = 1; num_sms == 0 && i < 100; ++i) hold_sms(1, 5'000'000, stream, false);
    const auto start = std::chrono::steady_clock::now();
    const Status status = first_error(rig.forward(args_of(batch)));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    check_cuda(static_cast<int>(cudaStreamSynchronize(stream)), "holder");
    const uint64_t rows = status.ok() ? differing_rows(batch, want) : UINT64_MAX;
    passed = passed && rows == 0;
    text += fmt::format("{}{}: {} after {:.2f} s", text.empty() ? "" : "; ",
                        num_sms == 0 ? std::string("100 short kernels on one SM") : fmt::format("{} SMs held", num_sms),
                        !status.ok() ? status.message()
                        : rows == 0  ? "the same bits"
                                     : "OTHER BITS",
                        seconds);
  }
  cudaStreamDestroy(stream);
  return {passed, text};
}

/// Two layers with handles of their own, called by two threads at once.
Outcome two_layers_at_once() {
  const DeviceWeights weights(kSmall, 101);
  Rig first(check_config(kSmall, 200), 1), second(check_config(kSmall, 200), 1);
  Rig* rigs[] = {&first, &second};
  Batch batches[] = {make_batch(kSmall, {200}, 102), make_batch(kSmall, {77}, 103)};
  std::vector<std::vector<DeviceBuffer>> want;
  for (int i = 0; i < 2; ++i) {
    rigs[i]->load(weights);
    if (const Status status = rigs[i]->forward(args_of(batches[i]))[0]; !status.ok()) return {false, status.message()};
    want.push_back(copy_outputs(batches[i]));
  }
  for (const Batch& batch : batches) poison(batch);
  Status statuses[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      for (int call = 0; call < 200 && statuses[i].ok(); ++call) statuses[i] = rigs[i]->forward(args_of(batches[i]))[0];
    });
  for (std::thread& thread : threads) thread.join();
  uint64_t rows = 0;
  for (int i = 0; i < 2; ++i) {
    if (!statuses[i].ok()) return {false, statuses[i].message()};
    rows += differing_rows(batches[i], want[i]);
  }
  return {rows == 0, fmt::format("2 x 200 calls: {} rows differ", rows)};
}

/// Streams of one rank.
struct RankStreams {
  RankStreams() {
    for (cudaStream_t* stream : {&produce, &call, &consume})
      check_cuda(static_cast<int>(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking)), "stream");
    for (cudaEvent_t* event : {&produced, &called})
      check_cuda(static_cast<int>(cudaEventCreateWithFlags(event, cudaEventDisableTiming)), "event");
  }
  cudaStream_t produce, call, consume;  // leak with the process
  cudaEvent_t produced, called;
};

/// Ids written late by a kernel on one stream, the call on the same or on another one after an event, the output read
/// on a third.
Outcome streams() {
  constexpr uint32_t kRounds = 20;
  const DeviceWeights weights(kSmall, 111);
  Rig rig(check_config(kSmall, 64), 2);
  rig.load(weights);
  const Batch batch = make_batch(kSmall, {64, 64}, 112);
  std::vector<DeviceBuffer> right_ids, stale_ids, seen;
  for (const auto& mine : batch) {
    const std::vector<int64_t> stale(mine->ids.size(), 3);
    for (size_t i = 0; i < mine->ids.size(); i += 2) mine->ids[i] = -1;
    mine->upload();
    right_ids.emplace_back(mine->ids.data(), mine->ids.size() * 8);
    stale_ids.emplace_back(stale.data(), stale.size() * 8);
    seen.emplace_back(mine->output.bytes());
  }
  if (const Status status = first_error(rig.forward(args_of(batch))); !status.ok()) return {false, status.message()};
  const std::vector<DeviceBuffer> want = copy_outputs(batch);
  RankStreams ranks[2];
  uint64_t rows = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      DeviceTokens& mine = *batch[rank];
      const RankStreams& s = ranks[rank];
      cudaMemcpyAsync(mine.device_ids.data(), stale_ids[rank].data(), stale_ids[rank].bytes(), cudaMemcpyDeviceToDevice,
                      s.produce);
      cudaMemsetAsync(mine.output.data(), 0xff, mine.output.bytes(), s.produce);
      copy_ids_late(static_cast<int64_t*>(mine.device_ids.data()), static_cast<const int64_t*>(right_ids[rank].data()),
                    mine.ids.size(), 3'000'000, s.produce);
      const bool same = round % 2 == 0;
      if (!same) {
        cudaEventRecord(s.produced, s.produce);
        cudaStreamWaitEvent(s.call, s.produced);
      }
      if (const Status status = rig.rank(rank).enqueue(mine.args(), {}, same ? s.produce : s.call); !status.ok())
        return {false, status.message()};
      cudaEventRecord(s.called, same ? s.produce : s.call);
      cudaStreamWaitEvent(s.consume, s.called);
      cudaMemcpyAsync(seen[rank].data(), mine.output.data(), seen[rank].bytes(), cudaMemcpyDeviceToDevice, s.consume);
    }
    check_cuda(static_cast<int>(cudaDeviceSynchronize()), "streams");
    for (uint32_t rank = 0; rank < 2; ++rank) {
      if (const Status status = rig.rank(rank).finish(); !status.ok()) return {false, status.message()};
      rows += count_differing_rows(seen[rank].data(), want[rank].data(), 64, 64, kSmall.hidden * 2);
    }
  }
  // One rank on the streams that a process has by default.
  Rig one(check_config(kSmall, 64), 1);
  one.load(weights);
  const Batch alone = make_batch(kSmall, {64}, 113);
  if (const Status status = one.forward(args_of(alone))[0]; !status.ok()) return {false, status.message()};
  const std::vector<DeviceBuffer> want_alone = copy_outputs(alone);
  for (cudaStream_t stream : {cudaStreamLegacy, cudaStreamPerThread}) {
    cudaMemsetAsync(alone[0]->output.data(), 0xff, alone[0]->output.bytes(), stream);
    if (const Status status = one.rank(0).enqueue(alone[0]->args(), {}, stream); !status.ok())
      return {false, status.message()};
    check_cuda(static_cast<int>(cudaStreamSynchronize(stream)), "default stream");
    rows += differing_rows(alone, want_alone);
  }
  return {rows == 0, fmt::format("{} rounds on 2 ranks, and the legacy and per-thread default streams: {} rows differ",
                                 kRounds, rows)};
}

/// A graph captured from a handle's first call, replayed over changing data: each replay is a call of its own.
Outcome graph_on_ranks(uint32_t num_ranks) {
  constexpr MoeShape kShape{512, 256, 16, 4};
  constexpr uint32_t kPatterns = 4, kReplays = 200;
  const DeviceWeights weights(kShape, 121);
  std::vector<Batch> patterns;
  std::vector<std::vector<DeviceBuffer>> want;
  {
    Rig eager(check_config(kShape, 16), num_ranks);
    eager.load(weights);
    for (uint32_t p = 0; p < kPatterns; ++p) {
      patterns.push_back(make_batch(kShape, std::vector<uint32_t>(num_ranks, 16), 1000 * (p + 1)));
      for (uint32_t rank = 0; rank < num_ranks; ++rank) {
        DeviceTokens& mine = *patterns[p][rank];
        for (size_t i = 0; i < mine.ids.size(); ++i)
          if ((p == 1 && i >= 8) || (p == 2 && rank == 0)) mine.ids[i] = -1;  // few live rows; a silent source
        mine.upload();
      }
      if (const Status status = first_error(eager.forward(args_of(patterns[p]))); !status.ok())
        return {false, status.message()};
      want.push_back(copy_outputs(patterns[p]));
    }
  }
  Rig rig(check_config(kShape, 16), num_ranks);
  rig.load(weights);
  const Batch live = make_batch(kShape, std::vector<uint32_t>(num_ranks, 16), 1);
  std::vector<RankStreams> streams(num_ranks);
  std::vector<cudaGraphExec_t> graphs(num_ranks);
  std::vector<DeviceBuffer> results;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    cudaGraph_t graph;
    check_cuda(static_cast<int>(cudaStreamBeginCapture(streams[rank].call, cudaStreamCaptureModeThreadLocal)),
               "capture");
    if (const Status status = rig.rank(rank).enqueue(live[rank]->args(), {}, streams[rank].call); !status.ok())
      return {false, status.message()};
    check_cuda(static_cast<int>(cudaStreamEndCapture(streams[rank].call, &graph)), "capture");
    check_cuda(static_cast<int>(cudaGraphInstantiate(&graphs[rank], graph)), "instantiate");
    results.emplace_back(live[rank]->output.bytes() * kReplays);
  }
  for (uint32_t replay = 0; replay < kReplays; ++replay) {
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      const DeviceTokens &from = *patterns[replay % kPatterns][rank], &to = *live[rank];
      cudaStream_t stream = streams[rank].call;
      const auto copy = [&](const DeviceBuffer& target, const DeviceBuffer& source) {
        cudaMemcpyAsync(target.data(), source.data(), target.bytes(), cudaMemcpyDeviceToDevice, stream);
      };
      copy(to.hidden, from.hidden);
      copy(to.device_ids, from.device_ids);
      copy(to.device_router, from.device_router);
      cudaMemsetAsync(to.output.data(), 0xff, to.output.bytes(), stream);
      check_cuda(static_cast<int>(cudaGraphLaunch(graphs[rank], stream)), "replay");
      cudaMemcpyAsync(static_cast<char*>(results[rank].data()) + replay * to.output.bytes(), to.output.data(),
                      to.output.bytes(), cudaMemcpyDeviceToDevice, stream);
    }
    // The first half without a host that waits in between.
    if (replay >= kReplays / 2) check_cuda(static_cast<int>(cudaDeviceSynchronize()), "replay");
  }
  check_cuda(static_cast<int>(cudaDeviceSynchronize()), "replays");
  uint64_t rows = 0;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    if (const Status status = rig.rank(rank).finish(); !status.ok()) return {false, status.message()};
    for (uint32_t replay = 0; replay < kReplays; ++replay)
      rows += count_differing_rows(static_cast<char*>(results[rank].data()) + replay * live[rank]->output.bytes(),
                                   want[replay % kPatterns][rank].data(), 16, 16, kShape.hidden * 2);
    cudaGraphExecDestroy(graphs[rank]);
  }
  return {rows == 0, fmt::format("{} replays over 4 patterns on {} ranks, captured before the first call: {} rows "
                                 "differ from eager calls",
                                 kReplays, num_ranks, rows)};
}

}  // namespace

std::vector<Check> stress_checks() {
  return {
      {"first_call", [] { return first_call(); }},
      {"chaos.1_rank", [] { return chaos(1, 400, false); }},
      {"chaos.1_rank.small_rings", [] { return chaos(1, 200, true); }},
      {"chaos.2_ranks", [] { return chaos(2, 300, false); }},
      {"chaos.4_ranks.small_rings", [] { return chaos(4, 200, true); }},
      {"delayed_rank", [] { return delayed_rank(); }},
      {"absent_rank.of_four", [] { return absent_of_four(); }},
      {"no_spoiled_row.4_ranks",
       [] {
         return no_spoiled_row({7168, 128, 256, 2}, {1024, 0, 0, 0}, true, 500);
       }},
      {"no_spoiled_row.8_ranks",
       [] {
         return no_spoiled_row({7168, 256, 256, 8}, std::vector<uint32_t>(8, 256), false, 200);
       }},
      {"beside_other_kernels", [] { return beside_other_kernels(); }},
      {"two_layers_at_once", [] { return two_layers_at_once(); }},
      {"streams", [] { return streams(); }},
      {"graph_replay.2_ranks", [] { return graph_on_ranks(2); }},
      {"graph_replay.8_ranks", [] { return graph_on_ranks(8); }},
  };
}

}  // namespace megamoe::device_check
