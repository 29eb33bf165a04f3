// Groups on GPUs over the stand-in driver: the order of calls, what is held afterwards, and every fault as one sentence
// on every rank.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "comm/gpu_groups.h"
#include "rank_runner.h"
#include "support/stand_in_gpu.h"

namespace megamoe::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kTimeoutNs = 4 * kSecond;
constexpr uint64_t kBytes = 5'000'000;

size_t num_open_files() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

using FaultsOfRank = std::function<StandInFaults(uint32_t rank)>;
using DeviceOfRank = std::function<int32_t(uint32_t rank)>;
using Body = std::function<std::string(SymmetricMemory& memory)>;

std::string allocate(SymmetricMemory& memory) { return text_of(memory.allocate(kBytes, kTimeoutNs)); }

/// One process a rank, each with a driver of its own. Says so where a rank still holds something in the end.
std::vector<std::string> run_processes(
    uint32_t num_ranks, const FaultsOfRank& faults, const Body& body = allocate,
    const DeviceOfRank& device = [](uint32_t rank) { return static_cast<int32_t>(rank); }) {
  const TempFolder folder;
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < num_ranks; ++rank)
    children.emplace_back([&, rank]() -> std::string {
      StandInGpu driver(faults(rank));
      const size_t files_before = num_open_files();
      std::string text;
      {
        auto joined =
            comm::join_gpu_process_group(driver, {rank, num_ranks, "gpu", folder.path(), kTimeoutNs}, device(rank));
        text = joined.ok() ? body(*joined.value()) : text_of(joined.status());
      }
      if (driver.num_held() != 0) text += fmt::format(" ({} things held)", driver.num_held());
      if (num_open_files() != files_before)
        text += fmt::format(" ({} files open, were {})", num_open_files(), files_before);
      return text;
    });
  std::vector<std::string> answers;
  answers.reserve(num_ranks);
  for (Child& child : children) answers.push_back(child.wait());
  return answers;
}

StandInFaults no_faults(uint32_t) { return {}; }

TEST(GpuThreads, MemoryIsTakenOnEachGpuMappedOnceAndOpenedToAllGpus) {
  StandInGpu driver;
  {
    const std::vector<int32_t> devices{1, 0, 1};
    auto group = comm::make_gpu_thread_group(driver, devices);
    ASSERT_TRUE(group.ok()) << group.status().message();
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] { EXPECT_EQ(allocate(*group.value()[rank]), "ok"); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(driver.calls(),
                ElementsAre("can_share", "can_share", "can_share", "create", "create", "create", "reserve",  //
                            "map", "allow", "zero", "map", "allow", "zero", "map", "allow", "zero",          //
                            "release", "release", "release",  // The mappings hold the memory from here on.
                            "tell", "tell", "tell", "hear", "zero", "hear", "zero", "hear", "zero"));
    EXPECT_THAT(driver.last_allowed(), ElementsAre(0, 1));
    EXPECT_EQ(group.value()[0]->device_index(), 1);
    EXPECT_EQ(group.value()[1]->device_index(), 0);
    EXPECT_EQ(group.value()[0]->stride_bytes(), uint64_t{6} << 20);
    EXPECT_TRUE(group.value()[0]->warnings().empty());
  }
  EXPECT_EQ(driver.num_held(), 0u);
  EXPECT_THAT(driver.calls(), Each(Not("import")));
}

TEST(GpuThreads, EveryPairWithoutPeerAccessIsNamed) {
  StandInFaults faults;
  faults.denied = {{0, 1}, {1, 0}};
  StandInGpu driver(faults);
  const std::vector<int32_t> devices{0, 1, 1};
  EXPECT_THAT(
      text_of(comm::make_gpu_thread_group(driver, devices).status()),
      AllOf(
          StartsWith("not_supported: make_cuda_thread_group: every rank must read and write every rank's memory, got: "
                     "rank 0 on GPU-00111111-"),
          HasSubstr("cannot access the memory of rank 2 on GPU-01111111-"),
          HasSubstr("rank 1 on GPU-01111111-1111-1111-1111-111111111111 cannot access the memory of rank 0 on "),
          HasSubstr("rank 2 on "), EndsWith("megamoe doctor)")));
}

TEST(GpuThreads, AWrongIndexIsRefused) {
  StandInGpu driver;
  const std::vector<int32_t> devices{0, 4};
  EXPECT_EQ(text_of(comm::make_gpu_thread_group(driver, devices).status()),
            "invalid_argument: make_cuda_thread_group: device_index must be one of the 4 GPUs, counted from 0, got 4");
}

TEST(GpuThreads, AFaultInAnyStepReleasesAllAndTheGroupGoesOn) {
  for (const char* call : {"create", "reserve", "map", "allow", "zero", "tell", "hear"}) {
    StandInFaults faults;
    faults.failing_call = call;
    StandInGpu driver(faults);
    const std::vector<int32_t> devices{0};
    auto group = comm::make_gpu_thread_group(driver, devices);
    ASSERT_TRUE(group.ok());
    for (int round = 0; round < 2; ++round)
      EXPECT_THAT(allocate(*group.value()[0]),
                  AllOf(StartsWith("internal: symmetric_memory.allocate: "),
                        HasSubstr(fmt::format("stand-in {} answered a fault", call)), HasSubstr("GPU 0")));
    EXPECT_EQ(driver.num_held(), 0u) << call;
  }
}

TEST(GpuThreads, APairThatTheProbeFindsSilentIsNamed) {
  StandInFaults faults;
  faults.spoilt = {{0, 0}};
  StandInGpu driver(faults);
  const std::vector<int32_t> devices{0};
  auto group = comm::make_gpu_thread_group(driver, devices);
  EXPECT_THAT(allocate(*group.value()[0]), HasSubstr("what rank 0 wrote is not what rank 0 found in its memory"));
  EXPECT_EQ(driver.num_held(), 0u);
}

TEST(GpuProcesses, SeveralHundredAllocationsLeaveNothing) {
  const auto answers = run_processes(2, no_faults, [](SymmetricMemory& memory) -> std::string {
    size_t files = 0;
    for (int round = 0; round < 150; ++round) {
      if (const std::string text = allocate(memory); text != "ok") return text;
      if (round == 1) files = num_open_files();
      if (round > 1 && num_open_files() != files) return fmt::format("{} files, were {}", num_open_files(), files);
      if (const Status status = memory.release(kTimeoutNs); !status.ok()) return text_of(status);
    }
    return memory.base() == nullptr && memory.allocated_bytes() == 0 ? "ok" : "still mapped";
  });
  EXPECT_THAT(answers, Each("ok"));
}

TEST(GpuProcesses, LeavingWithoutReleaseLeavesNothing) { EXPECT_THAT(run_processes(3, no_faults), Each("ok")); }

TEST(GpuProcesses, GpusAreToldApartByUuidWhateverTheirIndex) {
  const auto faults = [](uint32_t rank) {
    StandInFaults own;
    own.visible = {static_cast<uint8_t>(7 + rank)};  // Each process sees its own GPU only, as index 0.
    return own;
  };
  const auto body = [](SymmetricMemory& memory) {
    return allocate(memory) + fmt::format(" index {}, {} warnings", memory.device_index(), memory.warnings().size());
  };
  EXPECT_THAT(run_processes(2, faults, body, [](uint32_t) { return 0; }), Each("ok index 0, 0 warnings"));
}

TEST(GpuProcesses, ThatShareAGpuAreWarned) {
  const auto body = [](SymmetricMemory& memory) {
    return allocate(memory) + " " + (memory.warnings().empty() ? "none" : memory.warnings()[0]);
  };
  EXPECT_THAT(run_processes(3, no_faults, body, [](uint32_t rank) { return rank == 1 ? 1 : 0; }),
              Each(AllOf(StartsWith("ok ranks 0 and 2 are processes that share GPU-00111111-"),
                         HasSubstr("their kernels take turns"))));
}

TEST(GpuProcesses, AnUnknownIndexIsHeardByEveryRank) {
  EXPECT_THAT(run_processes(3, no_faults, allocate, [](uint32_t rank) { return rank == 1 ? 9 : 0; }),
              Each("invalid_argument: join_cuda_process_group: device_index must be one of the 4 GPUs, counted from 0, "
                   "got 9"));
}

TEST(GpuProcesses, APairWithoutPeerAccessIsNamedOnEveryRank) {
  const auto faults = [](uint32_t) {
    StandInFaults own;
    own.denied = {{2, 0}};
    return own;
  };
  EXPECT_THAT(run_processes(3, faults),
              Each(AllOf(StartsWith("not_supported: join_cuda_process_group: every rank must read and write every "
                                    "rank's memory, got: rank 2 (pid "),
                         HasSubstr(") on GPU-02111111-"), HasSubstr("cannot access the memory of rank 0 (pid "),
                         Not(HasSubstr("the memory of rank 1")))));
}

TEST(GpuProcesses, ALostOrSpoiltWriteNamesItsPairOnEveryRank) {
  const auto faults = [](uint32_t) {
    StandInFaults own;
    own.lost = {{0, 2}};
    own.spoilt = {{1, 0}};
    return own;
  };
  EXPECT_THAT(run_processes(3, faults),
              Each(AllOf(StartsWith("not_supported: symmetric_memory.allocate: every rank must read and write every "
                                    "rank's memory, got: what rank 1 (pid "),
                         HasSubstr(" wrote is not what rank 0 (pid "), HasSubstr("what rank 0 (pid "),
                         HasSubstr(" wrote did not arrive in the memory of rank 2 (pid "), Not(HasSubstr("held")))));
}

TEST(GpuProcesses, AFaultOnOneRankIsOneSentenceOnEveryRank) {
  for (const char* call : {"create", "export", "import", "reserve", "map", "allow", "zero", "tell", "hear"}) {
    const auto faults = [&](uint32_t rank) {
      StandInFaults own;
      if (rank == 1) own.failing_call = call;
      return own;
    };
    // Twice: the group itself is whole after a failure.
    const auto body = [](SymmetricMemory& memory) { return allocate(memory) + "\n" + allocate(memory); };
    const auto answers = run_processes(3, faults, body);
    EXPECT_THAT(answers, Each(AllOf(StartsWith("internal: symmetric_memory.allocate: "),
                                    HasSubstr(fmt::format("stand-in {} answered a fault", call)),
                                    HasSubstr("\ninternal: "), Not(HasSubstr("held")), Not(HasSubstr("files open")))))
        << call;
    EXPECT_EQ(answers[0], answers[2]) << call;
  }
}

TEST(GpuProcesses, MoreThanTheGpuHasIsRefusedOnEveryRankWithTheBytes) {
  const auto faults = [](uint32_t rank) {
    StandInFaults own;
    if (rank == 2) own.total_bytes = uint64_t{4} << 20;
    return own;
  };
  EXPECT_THAT(
      run_processes(3, faults),
      Each("out_of_memory: symmetric_memory.allocate: needs 6291456 bytes on GPU 2 for each rank, 18874368 bytes "
           "for all ranks, got: a GPU with 4194304 bytes; lower max_tokens, use more GPUs or free memory of the "
           "GPU"));
}

TEST(GpuProcesses, OnCudaAllocationsLeaveNoDescriptors) {
  if (const std::string reason = reason_to_skip(Transport::kCudaProcesses); !reason.empty()) GTEST_SKIP() << reason;
  const auto answers = run_ranks(Transport::kCudaProcesses, 2, [](auto& memory) -> std::string {
    size_t files = 0;
    for (int round = 0; round < 20; ++round) {
      if (const std::string text = allocate(*memory); text != "ok") return text;
      if (round == 1) files = num_open_files();
      if (round > 1 && num_open_files() != files) return fmt::format("{} files, were {}", num_open_files(), files);
      if (const Status status = memory->release(kTimeoutNs); !status.ok()) return text_of(status);
    }
    return "ok";
  });
  EXPECT_THAT(answers, Each("ok"));
}

TEST(GpuProcesses, HostAndGpuMemoryDoNotMixInAGroup) {
  const TempFolder folder;
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < 3; ++rank)
    children.emplace_back([&, rank] {
      return run_as_rank(
          {rank, 3, "mixed", folder.path(), kTimeoutNs}, [](auto&) { return std::string("joined"); },
          rank == 1 ? Transport::kStandInProcesses : Transport::kProcesses);
    });
  for (Child& child : children)
    EXPECT_THAT(child.wait(), StartsWith("invalid_argument: join_process_group: all ranks must join with memory of one "
                                         "kind, got host memory on rank 0 and GPU memory on rank 1 (pid "));
}

}  // namespace
}  // namespace megamoe::test
