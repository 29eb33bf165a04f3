// The rules of a collective call, without threads or time.
#include "comm/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megamoe::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kMs = 1'000'000;

Arrival gather(uint32_t rank, std::string contribution = "", uint64_t timeout_ns = 5000 * kMs) {
  return {rank, Collective::kAllGather, "test", contribution, contribution.size(), timeout_ns, 0};
}

TEST(Meeting, EndsWithTheLastArrivalAndCanBeginAgain) {
  Meeting meeting(3);
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(meeting.arrive(gather(2, "c"), 0));
    EXPECT_FALSE(meeting.arrive(gather(0, "a"), 0));
    EXPECT_TRUE(meeting.has_come(0));
    EXPECT_FALSE(meeting.has_come(1));
    const auto outcome = meeting.arrive(gather(1, "b"), 0);
    ASSERT_TRUE(outcome);
    EXPECT_TRUE(outcome->status.ok());
    EXPECT_THAT(outcome->contributions, ElementsAre("a", "b", "c"));
    EXPECT_THAT(outcome->ranks, ElementsAre(0, 1, 2));
    EXPECT_FALSE(meeting.deadline_ns());
  }
}

TEST(Meeting, ExpiresAtTheEarliestDeadline) {
  Meeting meeting(4);
  meeting.arrive(gather(0, "", 300 * kMs), 10);
  meeting.arrive(gather(3, "", 100 * kMs), 20);
  ASSERT_EQ(meeting.deadline_ns(), 20 + 100 * kMs);
  EXPECT_FALSE(meeting.expire(20 + 100 * kMs - 1));
  const auto outcome = meeting.expire(20 + 100 * kMs);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->status.code(), Code::kTimeout);
  EXPECT_EQ(outcome->status.message(),
            "symmetric_memory.all_gather: ranks 1 and 2 did not come to 'test' within 100 ms; look for that rank's own "
            "error, then create a new group");
  EXPECT_THAT(outcome->ranks, ElementsAre(0, 3));
  EXPECT_EQ(meeting.broken_status(Collective::kRelease).code(), Code::kPoisoned);
  EXPECT_THAT(meeting.broken_status(Collective::kRelease).message(),
              HasSubstr("symmetric_memory.release: the group is broken since an earlier event: ranks 1 and 2 did not"));
}

TEST(Meeting, TimeSpentBeforeTheArrivalCounts) {
  Meeting meeting(2);
  Arrival late = gather(0);
  late.spent_ns = 4000 * kMs;
  meeting.arrive(late, 0);
  EXPECT_EQ(meeting.deadline_ns(), 1000 * kMs);
}

TEST(Meeting, AnEndlessTimeoutDoesNotOverflow) {
  Meeting meeting(2);
  meeting.arrive(gather(0, "", UINT64_MAX), uint64_t{1} << 61);
  EXPECT_GT(*meeting.deadline_ns(), uint64_t{1} << 61);
  EXPECT_FALSE(meeting.expire((uint64_t{1} << 61) + 1));
}

TEST(Meeting, DeathAndLeavingBreakItForGoodAndTheFirstReasonStays) {
  Meeting meeting(3);
  meeting.set_description(1, "rank 1 (pid 4711)");
  meeting.arrive(gather(0), 0);
  const auto outcome = meeting.die(1);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->status.code(), Code::kPeerFailed);
  EXPECT_EQ(outcome->status.message(), "symmetric_memory.all_gather: rank 1 (pid 4711) died; create a new group");
  EXPECT_FALSE(meeting.leave(2));
  EXPECT_THAT(meeting.broken().message(), HasSubstr("rank 1 (pid 4711) died"));
}

TEST(Meeting, ARankThatHadComeAndDiedIsNotTold) {
  Meeting meeting(3);
  meeting.arrive(gather(0), 0);
  meeting.arrive(gather(1), 0);
  const auto outcome = meeting.die(1);
  ASSERT_TRUE(outcome);
  EXPECT_THAT(outcome->ranks, ElementsAre(0));
}

TEST(Meeting, OtherWordsForTheSameCallAreAnotherCall) {
  Meeting meeting(3);
  meeting.arrive(gather(0), 0);
  Arrival other = gather(1);
  other.what = "something else";
  const auto outcome = meeting.arrive(other, 0);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->status.code(), Code::kInvalidArgument);
  EXPECT_THAT(outcome->status.message(), HasSubstr("got rank 0 at 'test' and rank 1 at 'something else'"));
  EXPECT_FALSE(meeting.broken().ok());
}

TEST(ListRanks, ReadsAsASentenceDoes) {
  EXPECT_EQ(list_ranks({7}), "rank 7");
  EXPECT_EQ(list_ranks({1, 2}), "ranks 1 and 2");
  EXPECT_EQ(list_ranks({0, 5, 71}), "ranks 0, 5 and 71");
}

}  // namespace
}  // namespace megamoe::comm
