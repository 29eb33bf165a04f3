// megamoe_process_check: ranks as processes, on as many GPUs as are named; one line a check.
//   megamoe_process_check GPU,GPU[,...] [part of a name ...]     a GPU may be named twice: a rehearsal on one
// This process never uses CUDA: it forks the ranks, which must find the driver untouched.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "backends/sm90/instance.h"
#include "device/process_rank.h"
#include "rank_runner.h"
#include "support/layer_group.h"

namespace megamoe::device_check {
namespace {

using test::Child;
using test::kSecond;
using test::TempFolder;
using test::text_of;

enum class Verdict { kPassed, kFailed, kSkipped };

struct Outcome {
  Verdict verdict = Verdict::kFailed;
  std::string text;
};

Outcome judge(bool passed, std::string text) { return {passed ? Verdict::kPassed : Verdict::kFailed, std::move(text)}; }

using RankWork = std::function<std::string(ProcessRank& rank)>;

/// Every rank's answer; one that cannot join says why.
std::vector<std::string> run_ranks(Job job, const RankWork& work, uint64_t limit_ns = 90 * kSecond) {
  const TempFolder folder;
  job.folder = folder.path();
  std::vector<Child> children;
  for (uint32_t r = 0; r < job.num_ranks; ++r)
    children.emplace_back([&, r]() -> std::string {
      ProcessRank rank(job, r);
      const Status joined = rank.join();
      return joined.ok() ? work(rank) : joined.message();
    });
  std::vector<std::string> answers;
  for (Child& child : children) answers.push_back(child.wait(limit_ns));
  return answers;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

/// The bits of one GPU: all tokens on one rank, or shared by ranks that are threads.
std::string rows_of_threads(const Job& job, uint32_t num_ranks) {
  Child child([&]() -> std::string {
    const test::TestWeights weights = job.weights();
    LayerConfig config = job.config();
    config.max_tokens_per_rank = job.tokens_per_rank * job.num_ranks;
    const std::vector<int32_t> gpus(num_ranks, job.gpus.front());
    auto members = make_cuda_thread_group(gpus);
    if (!members.ok()) return members.status().message();
    test::LayerGroup group(config, members.value(), weights);
    for (const Status& status : group.created())
      if (!status.ok()) return status.message();
    std::string rows;
    for (const test::RankOutput& output : group.forward(test::split_tokens(job.shape, job.tokens(), num_ranks))) {
      if (!output.status.ok()) return output.status.message();
      rows.append(reinterpret_cast<const char*>(output.rows.data()), output.rows.size() * sizeof(uint16_t));
    }
    return rows;
  });
  return child.wait();
}

/// "the same N bytes", or where they part.
std::string compare(const std::string& got, const std::string& expected) {
  if (got == expected) return fmt::format("the same {} bytes", got.size());
  if (got.size() != expected.size())
    return fmt::format("{} bytes for {}: {:.300} | {:.100}", got.size(), expected.size(), got, expected);
  const auto [at, other] = std::mismatch(got.begin(), got.end(), expected.begin());
  return fmt::format("other bits from byte {} of {} on", at - got.begin(), got.size());
}

/// Rows after one call; the call may be made late by one rank.
std::string one_call(ProcessRank& rank, uint32_t late_rank, uint64_t delay_s) {
  if (const Status status = rank.open_layer(); !status.ok()) return status.message();
  if (const Status status = rank.barrier("first call"); !status.ok()) return status.message();
  if (rank.group().rank() == late_rank) std::this_thread::sleep_for(std::chrono::seconds(delay_s));
  if (const Status status = rank.forward(); !status.ok()) return status.message();
  return rank.rows();
}

Job small(const std::vector<int32_t>& gpus) {
  return {{512, 256, 16, 4}, std::max<uint32_t>(2, static_cast<uint32_t>(gpus.size())), 24, gpus, {}};
}

Job large(const std::vector<int32_t>& gpus) {
  return {{1024, 512, 16, 4}, std::max<uint32_t>(2, static_cast<uint32_t>(gpus.size())), 300, gpus, {}};
}

Outcome same_bits(const Job& job) {
  const std::string one = rows_of_threads(job, 1);
  const std::string threads = rows_of_threads(job, job.num_ranks);
  const std::string processes = joined(run_ranks(job, [](ProcessRank& rank) { return one_call(rank, 99, 0); }));
  const uint64_t bytes = uint64_t{job.num_ranks} * job.tokens_per_rank * job.shape.hidden * 2;
  return judge(one.size() == bytes && threads == one && processes == one,
               fmt::format("{} processes against 1 rank: {}; against threads of one GPU: {}", job.num_ranks,
                           compare(processes, one), compare(processes, threads)));
}

Outcome delayed(const Job& job) {
  const std::string one = rows_of_threads(job, 1);
  const auto start = std::chrono::steady_clock::now();
  const std::string late = joined(run_ranks(job, [](ProcessRank& rank) { return one_call(rank, 1, 10); }));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return judge(late == one && seconds >= 10, fmt::format("rank 1 came 10 s late: {}", compare(late, one)));
}

/// A rank dies while calls follow each other: the others say so within 3 s, and a new group works on the same GPUs.
Outcome killed(Job job) {
  const TempFolder folder;
  job.folder = folder.path();
  const test::Checkpoint running;
  std::vector<Child> children;
  for (uint32_t r = 0; r < job.num_ranks; ++r)
    children.emplace_back([&, r]() -> std::string {
      ProcessRank rank(job, r);
      if (const Status status = rank.join(); !status.ok()) return status.message();
      if (const Status status = rank.open_layer(); !status.ok()) return status.message();
      for (int call = 0;; ++call) {
        const Status status = rank.forward();
        if (!status.ok()) return text_of(status);
        if (call == 3) running.reach();
      }
    });
  if (!running.wait_for(job.num_ranks))
    return judge(false, "the ranks did not come to their calls: " + children[0].wait(kSecond));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  children[1].signal(SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  bool all_told = true;
  std::string first;
  for (uint32_t r = 0; r < job.num_ranks; ++r) {
    const std::string answer = children[r].wait(30 * kSecond);
    if (r == 1) continue;
    if (first.empty()) first = answer;
    all_told = all_told && answer.starts_with("peer_failed") && answer.find("rank 1 (pid") != std::string::npos;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string one = rows_of_threads(job, 1);
  const std::string after = joined(run_ranks(job, [](ProcessRank& rank) { return one_call(rank, 99, 0); }));
  return judge(all_told && seconds < 5 && after == one,
               fmt::format("told after {:.1f} s: \"{:.300}\"; a new group: {}", seconds, first, compare(after, one)));
}

/// Calls that follow each other without a pause; every rank compares each with its first.
std::string repeat(ProcessRank& rank, uint32_t num_calls, const std::function<Status()>& call) {
  std::string first;
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < num_calls; ++i) {
    if (const Status status = rank.poison(); !status.ok()) return status.message();
    if (const Status status = call(); !status.ok()) return fmt::format("call {}: {}", i, status.message());
    const std::string rows = rank.rows();
    if (first.empty()) first = rows;
    if (rows != first) return fmt::format("call {} has other bits: {}", i, compare(rows, first));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return fmt::format("{:08.3f}", 1e3 * seconds / num_calls) + first;
}

/// Whether every rank's rows are those of one rank, behind 8 characters with the milliseconds of a call.
Outcome judge_repeats(const Job& job, uint32_t num_calls, const std::vector<std::string>& answers, const char* what) {
  std::string rows;
  for (const std::string& answer : answers) rows += answer.size() > 8 ? answer.substr(8) : answer;
  const std::string one = rows_of_threads(job, 1);
  return judge(rows == one, fmt::format("{} {}: {}{}", num_calls, what, compare(rows, one),
                                        rows == one ? fmt::format("; {} ms each with copies", answers[0].substr(0, 8))
                                                    : fmt::format("; {:.200}", answers[0])));
}

Outcome back_to_back(const Job& job, uint32_t num_calls) {
  const auto answers = run_ranks(job, [&](ProcessRank& rank) -> std::string {
    if (const Status status = rank.open_layer(); !status.ok()) return status.message();
    return repeat(rank, num_calls, [&] { return rank.forward(); });
  });
  return judge_repeats(job, num_calls, answers, "calls");
}

Status cuda_answer(cudaError_t error, const char* call) {
  return error == cudaSuccess ? Status{} : Status{Code::kInternal, std::string(call) + ": " + cudaGetErrorName(error)};
}

/// Captures one call and replays it; between ranks only the kernels keep step.
std::string replay(ProcessRank& rank, const sm90::KernelInstance& instance, uint32_t num_calls) {
  if (const Status status = rank.open_kernel(instance); !status.ok()) return status.message();
  cudaSetDevice(rank.group().device_index());
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runnable = nullptr;
  Status status = cuda_answer(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  if (status.ok()) status = cuda_answer(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  if (status.ok()) status = rank.kernel().enqueue(rank.args(), {}, stream);
  if (status.ok()) status = cuda_answer(cudaStreamEndCapture(stream, &graph), "end of capture");
  if (status.ok()) status = cuda_answer(cudaGraphInstantiate(&runnable, graph, 0), "instantiate");
  if (status.ok()) status = rank.barrier("replays");
  if (!status.ok()) return status.message();
  const std::string answer = repeat(rank, num_calls, [&]() -> Status {
    MEGAMOE_RETURN_IF_ERROR(cuda_answer(cudaGraphLaunch(runnable, stream), "launch"));
    MEGAMOE_RETURN_IF_ERROR(cuda_answer(cudaStreamSynchronize(stream), "replay"));
    return rank.kernel().finish();
  });
  if (!rank.barrier("end of replays").ok()) return "a rank left: " + answer.substr(0, 200);
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < num_calls; ++i) cudaGraphLaunch(runnable, stream);
  status = cuda_answer(cudaStreamSynchronize(stream), "replays in a row");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (status.ok()) status = rank.kernel().finish();
  if (status.ok()) status = rank.barrier("end of replays in a row");
  if (!status.ok()) return status.message();
  if (rank.group().rank() == 0) std::printf("     %.1f us a replay without copies\n", 1e6 * seconds / num_calls);
  std::fflush(stdout);
  return answer;
}

Outcome graph(const Job& job, uint32_t num_calls, const sm90::KernelInstance& instance, const char* what) {
  const auto answers = run_ranks(job, [&](ProcessRank& rank) { return replay(rank, instance, num_calls); });
  return judge_repeats(job, num_calls, answers, what);
}

/// Calls under random delays: the variant that waits before every release and after every acquire.
Outcome chaos([[maybe_unused]] const Job& job, [[maybe_unused]] uint32_t num_calls) {
#if MEGAMOE_HAS_CHAOS
  return graph(job, num_calls, sm90::m128_chaos_instance(), "replays of the chaos variant");
#else
  return {Verdict::kSkipped, "this build has no chaos variant of the kernel"};
#endif
}

struct Check {
  const char* name;
  std::function<Outcome()> run;
};

std::vector<Check> all_checks(const std::vector<int32_t>& gpus) {
  const bool is_rehearsal = std::adjacent_find(gpus.begin(), gpus.end()) != gpus.end();
  const uint32_t num_calls = is_rehearsal ? 60 : 1000;  // Processes on one GPU wait for time slices in every call.
  return {
      {"bits.64_rows", [=] { return same_bits(small(gpus)); }},
      {"bits.128_rows", [=] { return same_bits(large(gpus)); }},
      {"killed", [=] { return killed(small(gpus)); }},
      {"graph", [=] { return graph(small(gpus), num_calls, sm90::m64_instance(), "replays"); }},
      {"back_to_back", [=] { return back_to_back(small(gpus), num_calls); }},
      {"back_to_back.128_rows", [=] { return back_to_back(large(gpus), num_calls); }},
      {"chaos", [=] { return chaos(large(gpus), num_calls); }},
      {"delayed", [=] { return delayed(small(gpus)); }},
  };
}

int run(int argc, char** argv) {
  std::vector<int32_t> gpus;
  for (const char* at = argv[1]; *at != 0; at += *at == ',' ? 1 : 0) {
    char* end = nullptr;
    gpus.push_back(static_cast<int32_t>(std::strtol(at, &end, 10)));
    if (end == at) return 2;
    at = end;
  }
  int counts[3] = {0, 0, 0};
  for (const Check& check : all_checks(gpus)) {
    bool is_chosen = argc == 2;
    for (int i = 2; i < argc; ++i) is_chosen = is_chosen || std::strstr(check.name, argv[i]) != nullptr;
    if (!is_chosen) continue;
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = check.run();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    constexpr const char* kWords[] = {"ok  ", "FAIL", "SKIPPED"};
    std::printf("%s process.%s: %s (%.1f s)\n", kWords[static_cast<int>(outcome.verdict)], check.name,
                outcome.text.c_str(), seconds);
    ++counts[static_cast<int>(outcome.verdict)];
  }
  std::printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
  return counts[1] == 0 && counts[0] > 0 ? 0 : 1;
}

}  // namespace
}  // namespace megamoe::device_check

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc >= 2) return megamoe::device_check::run(argc, argv);
  std::printf("usage: %s GPU,GPU[,...] [part of a name ...]\n", argv[0]);
  return 2;
}
