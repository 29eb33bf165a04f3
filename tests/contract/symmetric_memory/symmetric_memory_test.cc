// What every transport promises, checked on each of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <thread>

#include "rank_runner.h"

namespace megamoe::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kTimeoutNs = 20 * kSecond;

class SymmetricMemoryContract : public ::testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
  }

  std::vector<std::string> run(uint32_t num_ranks, const RankBody& body) {
    return run_ranks(GetParam(), num_ranks, body);
  }
};

INSTANTIATE_TEST_SUITE_P(, SymmetricMemoryContract,
                         ::testing::Values(Transport::kThreads, Transport::kProcesses, Transport::kStandInThreads,
                                           Transport::kStandInProcesses, Transport::kCudaThreads,
                                           Transport::kCudaProcesses),
                         [](const auto& instance) { return label_of(instance.param); });

std::string barrier(SymmetricMemory& memory) { return text_of(memory.all_gather("", "barrier", kTimeoutNs).status()); }

bool is_zero(const std::byte* at, uint64_t count) {
  std::vector<std::byte> bytes(count);
  read_bytes(at, bytes.data(), count);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

/// One allocation: zeroed everywhere; what each rank writes into each region is what all ranks read there.
std::string allocate_and_cross_write(SymmetricMemory& memory, uint64_t bytes) {
  if (const Status status = memory.allocate(bytes, kTimeoutNs); !status.ok()) return text_of(status);
  if (memory.allocated_bytes() < bytes || memory.stride_bytes() < bytes) return "too small";
  const auto region = [&](uint32_t rank) { return memory.base() + rank * memory.stride_bytes(); };
  for (uint32_t rank = 0; rank < memory.num_ranks(); ++rank)
    if (!is_zero(region(rank), bytes)) return fmt::format("rank {}'s region is not zeroed", rank);
  if (const std::string text = barrier(memory); text != "ok") return text;
  for (uint32_t rank = 0; rank < memory.num_ranks(); ++rank) {
    const auto value = static_cast<std::byte>(16 * memory.rank() + rank + 1);
    write_byte(region(rank) + memory.rank(), value);
    write_byte(region(rank) + bytes - 1 - memory.rank(), value);
  }
  if (const std::string text = barrier(memory); text != "ok") return text;
  for (uint32_t rank = 0; rank < memory.num_ranks(); ++rank)
    for (uint32_t writer = 0; writer < memory.num_ranks(); ++writer) {
      const auto value = static_cast<std::byte>(16 * writer + rank + 1);
      if (read_byte(region(rank) + writer) != value || read_byte(region(rank) + bytes - 1 - writer) != value)
        return fmt::format("what rank {} wrote into rank {}'s region is not there", writer, rank);
    }
  const Status released = memory.release(kTimeoutNs);
  if (memory.base() != nullptr || memory.allocated_bytes() != 0) return "release left memory behind";
  return text_of(released);
}

TEST_P(SymmetricMemoryContract, MemoryIsZeroedAndReachedByAllEachTime) {
  const auto answers = run(3, [](auto& memory) {
    for (const uint64_t bytes : {uint64_t{8}, uint64_t{4096}, (uint64_t{3} << 20) + 5, uint64_t{100}})
      if (const std::string text = allocate_and_cross_write(*memory, bytes); text != "ok") return text;
    return std::string("ok");
  });
  EXPECT_THAT(answers, Each("ok"));
}

TEST_P(SymmetricMemoryContract, ManyGigabytesCostOnlyWhatIsTouched) {
  if (is_cuda(GetParam())) GTEST_SKIP() << "memory of a GPU is taken when it is allocated";
  const auto answers = run(3, [](auto& memory) -> std::string {
    constexpr uint64_t kBytes = (uint64_t{16} << 30) + 12345;
    if (const Status status = memory->allocate(kBytes, kTimeoutNs); !status.ok()) return text_of(status);
    if (memory->stride_bytes() % (uint64_t{2} << 20) != 0) return "stride is not a multiple of 2 MiB";
    if (reinterpret_cast<uintptr_t>(memory->base()) % (uint64_t{2} << 20) != 0) return "base is not aligned to 2 MiB";
    if (memory->allocated_bytes() > kBytes + kBytes / 100) return "more than 1 % of padding";
    memory->base()[memory->rank() * memory->stride_bytes() + kBytes - 1] = std::byte{7};
    if (const std::string text = barrier(*memory); text != "ok") return text;
    for (uint32_t rank = 0; rank < 3; ++rank)
      if (memory->base()[rank * memory->stride_bytes() + kBytes - 1] != std::byte{7}) return "last byte not reached";
    return text_of(memory->release(kTimeoutNs));
  });
  EXPECT_THAT(answers, Each("ok"));
}

TEST_P(SymmetricMemoryContract, TooManyBytesAreRefusedOnAllRanksWithTheNumber) {
  const auto answers = run(3, [](auto& memory) {
    const std::string beyond = text_of(memory->allocate(uint64_t{1} << 48, kTimeoutNs));
    const std::string absurd = text_of(memory->allocate(UINT64_MAX, kTimeoutNs));
    return beyond + "\n" + absurd + "\n" + allocate_and_cross_write(*memory, 100);
  });
  EXPECT_THAT(answers, Each(AllOf(StartsWith("out_of_memory: symmetric_memory.allocate: "),
                                  HasSubstr("844424930131968 bytes"),  // 3 x 2^48
                                  HasSubstr("\nout_of_memory"), HasSubstr("18446744073709551615 bytes on each of 3"),
                                  ::testing::EndsWith("\nok"))));
}

TEST_P(SymmetricMemoryContract, DifferentSizesAreOneErrorOnAllRanks) {
  const auto answers = run(3, [](auto& memory) {
    const Status status = memory->allocate(memory->rank() == 1 ? 8192 : 4096, kTimeoutNs);
    return text_of(status) + "\n" + allocate_and_cross_write(*memory, 100);
  });
  EXPECT_THAT(answers, Each("invalid_argument: symmetric_memory.allocate: bytes must be equal on all ranks, since all "
                            "regions share one stride, got 4096 on rank 0 and 8192 on rank 1; create all ranks with "
                            "the same sizes\nok"));
}

TEST_P(SymmetricMemoryContract, ZeroBytesAreRefusedOnAllRanks) {
  const auto answers =
      run(2, [](auto& memory) { return text_of(memory->allocate(memory->rank() == 0 ? 64 : 0, kTimeoutNs)); });
  EXPECT_THAT(answers, Each("invalid_argument: symmetric_memory.allocate: bytes must be at least 1, got 0 on rank 1"));
}

TEST_P(SymmetricMemoryContract, ASecondAllocationNeedsARelease) {
  const auto answers = run(2, [](auto& memory) {
    if (const Status status = memory->allocate(64, kTimeoutNs); !status.ok()) return text_of(status);
    return text_of(memory->allocate(64, kTimeoutNs));
  });
  EXPECT_THAT(answers,
              Each(AllOf(StartsWith("invalid_argument: symmetric_memory.allocate: "), HasSubstr("release()"))));
}

TEST_P(SymmetricMemoryContract, AllGatherGivesEveryContributionByRank) {
  const auto answers = run(4, [](auto& memory) -> std::string {
    for (uint32_t round = 0; round < 100; ++round) {
      const auto contribution = [round](uint32_t rank) {
        return std::string((rank + round) % 3 * 1000 * round, static_cast<char>(rank + round));
      };
      const auto all = memory->all_gather(contribution(memory->rank()), "test", kTimeoutNs);
      if (!all.ok()) return text_of(all.status());
      for (uint32_t rank = 0; rank < 4; ++rank)
        if (all.value()[rank] != contribution(rank)) return fmt::format("round {}: wrong text of rank {}", round, rank);
    }
    return "ok";
  });
  EXPECT_THAT(answers, Each("ok"));
}

TEST_P(SymmetricMemoryContract, AllGatherCarriesMegabytes) {
  const auto answers = run(3, [](auto& memory) -> std::string {
    const std::string mine(uint64_t{16} << 20, static_cast<char>('a' + memory->rank()));
    const auto all = memory->all_gather(mine, "test", kTimeoutNs);
    if (!all.ok()) return text_of(all.status());
    for (uint32_t rank = 0; rank < 3; ++rank)
      if (all.value()[rank] != std::string(mine.size(), static_cast<char>('a' + rank))) return "wrong bytes";
    const std::string above(memory->rank() == 1 ? mine.size() + 1 : 1, 'x');
    return text_of(memory->all_gather(above, "too much", kTimeoutNs).status());
  });
  EXPECT_THAT(answers, Each("invalid_argument: symmetric_memory.all_gather: a contribution must have at most 16777216 "
                            "bytes, got 16777217 from rank 1 to 'too much'"));
}

TEST_P(SymmetricMemoryContract, AllGatherIsABarrier) {
  const auto answers = run(3, [](auto& memory) -> std::string {
    if (const Status status = memory->allocate(4096, kTimeoutNs); !status.ok()) return text_of(status);
    for (uint32_t round = 1; round <= 300; ++round) {
      std::byte* const own = memory->base() + memory->rank() * memory->stride_bytes();
      write_bytes(own, &round, sizeof(round));
      if (const std::string text = barrier(*memory); text != "ok") return text;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        uint32_t seen = 0;
        read_bytes(memory->base() + rank * memory->stride_bytes(), &seen, sizeof(seen));
        if (seen != round) return fmt::format("round {}: rank {} is at {}", round, rank, seen);
      }
      if (const std::string text = barrier(*memory); text != "ok") return text;
    }
    return text_of(memory->release(kTimeoutNs));
  });
  EXPECT_THAT(answers, Each("ok"));
}

TEST_P(SymmetricMemoryContract, AnAbsentRankIsNamedAtTheDeadlineAndTheGroupIsBroken) {
  const auto answers = run(4, [](auto& memory) -> std::string {
    if (memory->rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return text_of(memory->all_gather("", "exchange of configurations", kTimeoutNs).status());
    }
    const uint64_t start_ns = now_ns();
    const auto first = memory->all_gather("", "exchange of configurations", 500 * kMillisecond);
    const uint64_t waited_ns = now_ns() - start_ns;
    if (waited_ns < 400 * kMillisecond || waited_ns > 2 * kSecond) return fmt::format("ended after {} ns", waited_ns);
    const uint64_t second_start_ns = now_ns();
    const Status second = memory->allocate(64, kTimeoutNs);
    if (now_ns() - second_start_ns > kSecond) return "a broken group must answer at once";
    if (second.code() != Code::kPoisoned || second.message().find("rank 2 did not come") == std::string::npos)
      return "second call: " + text_of(second);
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // Until rank 2 has had its answer.
    return text_of(first.status());
  });
  for (const uint32_t rank : {0, 1, 3})
    EXPECT_THAT(answers[rank], StartsWith("timeout: symmetric_memory.all_gather: rank 2 did not come to 'exchange of "
                                          "configurations' within 500 ms"));
  EXPECT_THAT(answers[2],
              StartsWith("poisoned: symmetric_memory.all_gather: the group is broken since an earlier event: "
                         "rank 2 did not come"));
}

TEST_P(SymmetricMemoryContract, AllAbsentRanksAreNamed) {
  const auto answers = run(4, [](auto& memory) -> std::string {
    if (memory->rank() == 3) return text_of(memory->release(200 * kMillisecond));
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    return "absent";
  });
  EXPECT_THAT(answers[3], StartsWith("timeout: symmetric_memory.release: ranks 0, 1 and 2 did not come"));
}

TEST_P(SymmetricMemoryContract, ARankThatLeavesEndsTheWaitsOfTheOthers) {
  for (const uint32_t leaver : {0u, 1u}) {
    const auto answers = run(3, [leaver](auto& memory) -> std::string {
      if (const std::string text = barrier(*memory); text != "ok") return text;
      if (memory->rank() == leaver) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        memory.reset();
        return "left";
      }
      const uint64_t start_ns = now_ns();
      const Status status = memory->all_gather("", "test", kTimeoutNs).status();
      if (now_ns() - start_ns > 2 * kSecond) return "too late";
      if (!memory->dead_ranks().empty()) return "a rank that left is not dead";
      return text_of(status);
    });
    for (uint32_t rank = 0; rank < 3; ++rank) {
      if (rank == leaver) continue;
      EXPECT_THAT(answers[rank], AllOf(StartsWith("peer_failed: symmetric_memory.all_gather: "),
                                       HasSubstr(fmt::format("rank {}", leaver)), HasSubstr("left the group")));
    }
  }
}

TEST_P(SymmetricMemoryContract, LeavingAfterACallDoesNotSpoilItForSlowerRanks) {
  const int num_rounds = is_cuda(GetParam()) ? 2 : 40;  // A round on a GPU creates a context for each process.
  for (int round = 0; round < num_rounds; ++round) {
    const auto answers = run(4, [](auto& memory) {
      const std::string text = text_of(memory->allocate(64, kTimeoutNs));
      return text == "ok" ? text_of(memory->release(kTimeoutNs)) : text;
    });
    ASSERT_THAT(answers, Each("ok")) << "round " << round;
  }
}

TEST_P(SymmetricMemoryContract, DifferentCallsAreAnErrorOnAllRanks) {
  const auto answers = run(2, [](auto& memory) {
    const Status status = memory->rank() == 0 ? memory->allocate(64, kTimeoutNs)
                                              : memory->all_gather("", "exchange", kTimeoutNs).status();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return text_of(status);
  });
  EXPECT_THAT(answers, Each(AllOf(StartsWith("invalid_argument: symmetric_memory."),
                                  HasSubstr("must make the same collective calls in the same order"),
                                  HasSubstr("'allocation of memory'"), HasSubstr("'exchange'"))));
}

TEST_P(SymmetricMemoryContract, AGroupOfOneNeedsNobody) {
  const auto answers = run(1, [](auto& memory) { return allocate_and_cross_write(*memory, 1000); });
  EXPECT_THAT(answers, Each("ok"));
}

TEST_P(SymmetricMemoryContract, SeventyTwoRanks) {
  if (GetParam() == Transport::kCudaProcesses) GTEST_SKIP() << "72 contexts take too much of one GPU";
  const auto answers = run(72, [](auto& memory) -> std::string {
    if (const Status status = memory->allocate(4096, kTimeoutNs); !status.ok()) return text_of(status);
    const auto all = memory->all_gather(fmt::format("{}", memory->rank()), "test", kTimeoutNs);
    if (!all.ok()) return text_of(all.status());
    for (uint32_t rank = 0; rank < 72; ++rank)
      if (all.value()[rank] != fmt::format("{}", rank)) return "wrong order";
    return text_of(memory->release(kTimeoutNs));
  });
  EXPECT_THAT(answers, Each("ok"));
}

TEST_P(SymmetricMemoryContract, DescribesItself) {
  const auto answers = run(2, [](auto& memory) {
    return fmt::format("{} {} {} {}", memory->rank(), memory->num_ranks(), memory->transport(), memory->describe(1));
  });
  for (uint32_t rank = 0; rank < 2; ++rank)
    EXPECT_THAT(answers[rank],
                AllOf(StartsWith(fmt::format("{} 2 {}", rank, transport_text(GetParam()))), HasSubstr(" rank 1")));
}

TEST(ThreadGroup, RefusesNumbersOfRanksOutOfRange) {
  for (const uint32_t num_ranks : {0u, 73u}) {
    const auto group = make_thread_group(num_ranks);
    ASSERT_FALSE(group.ok());
    EXPECT_EQ(text_of(group.status()),
              fmt::format("invalid_argument: make_thread_group: num_ranks must be 1 to 72, got {}", num_ranks));
  }
}

TEST(ProcessGroup, RefusesRanksOutOfRange) {
  EXPECT_EQ(text_of(join_process_group({0, 73, "x", "/nowhere", kSecond}).status()),
            "invalid_argument: join_process_group: num_ranks must be 1 to 72, got 73");
  EXPECT_EQ(text_of(join_process_group({2, 2, "x", "/nowhere", kSecond}).status()),
            "invalid_argument: join_process_group: rank must be below num_ranks 2, got 2");
}

}  // namespace
}  // namespace megamoe::test
