// How processes find their group: by options and by each launcher's variables, never another group, never twice.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "rank_runner.h"

namespace megamoe::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kTimeoutNs = 20 * kSecond;

using Environment = std::vector<std::pair<std::string, std::string>>;

std::string greet(std::shared_ptr<SymmetricMemory>& memory, const std::string& mine) {
  const auto all = memory->all_gather(mine, "greeting", kTimeoutNs);
  if (!all.ok()) return text_of(all.status());
  std::string text;
  for (const std::string& part : all.value()) text += part;
  return text;
}

/// A process that is a rank as its environment says.
Child start_with(const Environment& environment, const std::string& mine, uint64_t timeout_ns = kTimeoutNs) {
  return Child([=] {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
          "TORCHELASTIC_RESTART_COUNT", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MEGAMOE_RENDEZVOUS"})
      ::unsetenv(name);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    Result<ProcessGroupOptions> options = process_group_from_environment();
    if (!options.ok()) return text_of(options.status());
    options->timeout_ns = timeout_ns;
    return run_as_rank(options.value(), [&](auto& memory) { return greet(memory, mine); });
  });
}

Environment torchrun(uint32_t rank, uint32_t num_ranks) {
  return {{"RANK", fmt::format("{}", rank)},
          {"LOCAL_RANK", fmt::format("{}", rank)},
          {"WORLD_SIZE", fmt::format("{}", num_ranks)},
          {"LOCAL_WORLD_SIZE", fmt::format("{}", num_ranks)}};
}

Environment mpirun(uint32_t rank, uint32_t num_ranks) {
  return {{"OMPI_COMM_WORLD_RANK", fmt::format("{}", rank)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", fmt::format("{}", rank)},
          {"OMPI_COMM_WORLD_SIZE", fmt::format("{}", num_ranks)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", fmt::format("{}", num_ranks)}};
}

Environment with(Environment environment, const Environment& more) {
  environment.insert(environment.end(), more.begin(), more.end());
  return environment;
}

TEST(ProcessGroupFromEnvironment, FormsUnderEachLauncherAndTwoGroupsAtOnceNeverMeet) {
  const TempFolder folder;
  const Environment here{{"MEGAMOE_RENDEZVOUS", folder.path()}};
  const Environment groups[] = {
      {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}},
      {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29501"}},
      {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "second"}},
      {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RESTART_COUNT", "1"}},
      {},  // The parent process names the group.
  };
  for (int round = 0; round < 5; ++round) {
    std::vector<Child> children;
    std::vector<std::string> expected;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      for (size_t group = 0; group < std::size(groups); ++group) {
        children.push_back(
            start_with(with(with(torchrun(rank, 3), groups[group]), here), fmt::format("t{}.{} ", group, rank)));
        expected.push_back(fmt::format("t{0}.0 t{0}.1 t{0}.2 ", group));
      }
      for (const std::string job : {"a", "b"}) {
        children.push_back(start_with(with(with(mpirun(rank, 3), {{"PMIX_NAMESPACE", job}}), here),
                                      fmt::format("m{}.{} ", job, rank)));
        expected.push_back(fmt::format("m{0}.0 m{0}.1 m{0}.2 ", job));
      }
    }
    for (size_t i = 0; i < children.size(); ++i) ASSERT_EQ(children[i].wait(), expected[i]);
    ASSERT_EQ(folder.num_entries(), 0u);
  }
}

TEST(ProcessGroupFromEnvironment, TheDefaultFolderIsPrivateAndGoesAgain) {
  const TempFolder folder;
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < 2; ++rank)
    children.push_back(
        start_with(with(torchrun(rank, 2), {{"MASTER_PORT", "1"}, {"XDG_RUNTIME_DIR", folder.path()}}), "x"));
  for (Child& child : children) EXPECT_EQ(child.wait(), "xx");
  EXPECT_EQ(folder.num_entries(), 0u);

  // Without a usable XDG_RUNTIME_DIR: /tmp/megamoe-<uid>, seen while the group forms.
  const std::string fallback = fmt::format("/tmp/megamoe-{}", ::geteuid());
  Child rank0 = start_with(with(torchrun(0, 2), {{"MASTER_PORT", "1"}, {"XDG_RUNTIME_DIR", "/nowhere"}}), "x");
  struct stat info {};
  for (int i = 0; i < 500 && ::lstat(fallback.c_str(), &info) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  Child rank1 = start_with(with(torchrun(1, 2), {{"MASTER_PORT", "1"}, {"XDG_RUNTIME_DIR", "/nowhere"}}), "x");
  EXPECT_EQ(rank0.wait(), "xx");
  EXPECT_EQ(rank1.wait(), "xx");
}

TEST(ProcessGroupFromEnvironment, SeveralHostsAreRefusedOnEveryRank) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Environment environment = torchrun(rank, 4);
    environment[3].second = "2";
    EXPECT_EQ(start_with(environment, "").wait(),
              "not_supported: process_group_from_environment: WORLD_SIZE must equal LOCAL_WORLD_SIZE, since all ranks "
              "share one host's memory, got 4 and 2; start all ranks on one host");
  }
}

TEST(ProcessGroupForming, ADuplicateRankIsRefusedOnEveryRank) {
  for (const uint32_t duplicate : {0u, 1u}) {
    const TempFolder folder;
    std::vector<Child> children;
    const uint64_t start_ns = now_ns();
    for (const uint32_t rank : {0u, 1u, duplicate})  // Rank 2 of three is missing.
      children.push_back(Child([&folder, rank] {
        return run_as_rank({rank, 3, "duplicate", folder.path(), kTimeoutNs}, [](auto&) { return std::string("ok"); });
      }));
    for (Child& child : children)
      EXPECT_THAT(
          child.wait(),
          AllOf(StartsWith("invalid_argument: join_process_group: each rank must be one process, got "),
                HasSubstr(fmt::format("rank {} (pid {})", duplicate, children[duplicate].pid()).substr(0, 12))));
    EXPECT_LT(now_ns() - start_ns, 5 * kSecond);
    EXPECT_EQ(folder.num_entries(), 0u);
  }
}

TEST(ProcessGroupForming, DifferentNumbersOfRanksAreRefusedOnEveryRank) {
  const TempFolder folder;
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < 3; ++rank)
    children.push_back(Child([&folder, rank] {
      return run_as_rank({rank, rank == 1 ? 4u : 3u, "sizes", folder.path(), kTimeoutNs},
                         [](auto&) { return std::string("ok"); });
    }));
  for (Child& child : children)
    EXPECT_THAT(
        child.wait(5 * kSecond),
        StartsWith("invalid_argument: join_process_group: all ranks must agree on the number of ranks, got 3 on "
                   "rank 0 and 4 on rank 1 (pid "));
  EXPECT_EQ(folder.num_entries(), 0u);
}

struct Usage {
  size_t num_descriptors = 0;
  size_t num_mappings = 0;
  size_t num_shm_entries = 0;
  uint64_t resident_kib = 0;
};

Usage usage_now() {
  Usage usage;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++usage.num_descriptors;
  std::error_code error;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/dev/shm", error))
    ++usage.num_shm_entries;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++usage.num_mappings;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) usage.resident_kib = std::strtoull(line.c_str() + 6, nullptr, 10);
  return usage;
}

std::string create_and_destroy_200_times(const ProcessGroupOptions& options) {
  Usage early;
  for (int round = 0; round < 200; ++round) {
    const std::string text = run_as_rank(options, [](auto& memory) {
      if (const Status status = memory->allocate(1 << 20, kTimeoutNs); !status.ok()) return text_of(status);
      for (uint64_t i = 0; i < memory->stride_bytes(); i += 4096)
        memory->base()[memory->rank() * memory->stride_bytes() + i] = std::byte{1};
      // Half of the rounds leave without a release.
      return memory->stride_bytes() != 1 << 20 ? "wrong stride" : greet(memory, "x");
    });
    if (text != "xx") return fmt::format("round {}: {}", round, text);
    if (round == 5) early = usage_now();
  }
  const Usage late = usage_now();
  if (late.num_descriptors != early.num_descriptors)
    return fmt::format("descriptors: {} then {}", early.num_descriptors, late.num_descriptors);
  if (late.num_shm_entries != early.num_shm_entries) return "entries in /dev/shm";
  if (late.num_mappings > early.num_mappings + 40)
    return fmt::format("mappings: {} then {}", early.num_mappings, late.num_mappings);
  if (late.resident_kib > early.resident_kib + 10240)
    return fmt::format("resident: {} then {} KiB", early.resident_kib, late.resident_kib);
  return "ok";
}

TEST(ProcessGroupLeaks, NothingAfterTwoHundredRoundsInTheSameProcesses) {
  const TempFolder folder;
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < 2; ++rank)
    children.push_back(Child([&folder, rank] {
      return create_and_destroy_200_times({rank, 2, "leak", folder.path(), kTimeoutNs});
    }));
  for (Child& child : children) EXPECT_EQ(child.wait(), "ok");
  EXPECT_EQ(folder.num_entries(), 0u);
}

TEST(ProcessGroupLeaks, NothingAfterFiftyRoundsThatFail) {
  const TempFolder folder;
  const Usage early = usage_now();
  for (int round = 0; round < 50; ++round) {
    const auto joined = join_process_group({0, 2, "fails", folder.path(), 5 * kMillisecond});
    ASSERT_EQ(joined.status().code(), Code::kTimeout);
  }
  EXPECT_EQ(usage_now().num_descriptors, early.num_descriptors);
  EXPECT_EQ(folder.num_entries(), 0u);
}

}  // namespace
}  // namespace megamoe::test
