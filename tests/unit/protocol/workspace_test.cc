// The workspace layout: regions in order, apart, aligned, inside; sizes that do not fit are refused before anything is
// laid out.
#include "protocol/workspace.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "protocol/rank_view.h"
#include "protocol/ring.h"

namespace megamoe::protocol {
namespace {

TEST(Workspace, RegionsAreApartAlignedAndInside) {
  const WorkspaceSpec specs[] = {{{128, 64, 1, 1}, 1, 1, 8, 4, 4},
                                 {{7168, 2048, 256, 8}, 8, 4096, 128, 64, 64},
                                 {{384, 192, 10, 3}, 5, 17, 16, 5, 7},
                                 {{7168, 512, 8, 2}, 2, 200000, 64, 64, 64}};
  for (const WorkspaceSpec& spec : specs) {
    ASSERT_TRUE(Workspace::fits(spec));
    const Workspace w = Workspace::plan(spec);
    uint64_t end = 0;
    Workspace::for_each_region(spec, [&](const std::string& name, auto member, uint64_t count, uint64_t align, Reach) {
      EXPECT_EQ((w.*member).count, count) << name;
      EXPECT_GT(count, 0u) << name;
      EXPECT_EQ((w.*member).offset % align, 0u) << name;
      EXPECT_GE((w.*member).offset, end) << name;
      end = (w.*member).offset + (w.*member).bytes();
    });
    EXPECT_GE(w.bytes, end);
    EXPECT_LT(w.bytes - end, Workspace::kAlignBytes);
  }
}

TEST(Workspace, OffsetsBeyondFourGigabytes) {
  const Workspace w = Workspace::plan({{7168, 512, 8, 2}, 2, 200000, 64, 64, 64});
  EXPECT_EQ(w.combine_rows.bytes(), uint64_t{2} * 200000 * 7168 * 2);
  EXPECT_GT(w.bytes, uint64_t{1} << 32);
}

TEST(Workspace, SizesThatDoNotFitAreRefused) {
  EXPECT_FALSE(Workspace::fits({{7168, 512, 1024, 32}, 72, 4000000000u, 64, 64, 64}));
  EXPECT_FALSE(Workspace::fits({{16777216, 512, 8, 8}, 1, 4000000000u, 64, 64, 64}));
}

TEST(Workspace, EveryRowOfAnyRoutingHasABlock) {
  // All slots of all ranks at one expert of this rank, and one row at each of the others.
  const WorkspaceSpec spec{{128, 64, 8, 2}, 2, 33, 16, 8, 8};
  EXPECT_EQ(spec.max_rows(), 2u * 33 * 2);
  EXPECT_GE(spec.max_blocks() * spec.block_m, spec.max_rows());
  const uint64_t skewed = core::ceil_div<uint64_t>(spec.max_rows() - 3, 16) + 3;
  EXPECT_GE(spec.max_blocks(), skewed);
}

TEST(RankView, MapsTheSameElementOfAnotherRank) {
  RankView view;
  view.spec = {{128, 64, 4, 1}, 4, 2, 8, 4, 4};
  view.layout = Workspace::plan(view.spec);
  view.stride_bytes = view.layout.bytes;
  std::vector<char> memory(4 * view.stride_bytes);
  view.flat_base = memory.data();
  view.rank = 1;
  uint32_t* own = view.layout.expert_done.in(view.own()) + 3;
  EXPECT_EQ(view.map(own, 3), view.layout.expert_done.in(view.base(3)) + 3);
  EXPECT_EQ(view.map(own, 1), own);
}

TEST(BlockRing, PreviousOwnerOfASlot) {
  const BlockRing ring{5};
  EXPECT_FALSE(ring.has_previous(4));
  ASSERT_TRUE(ring.has_previous(5));
  EXPECT_EQ(ring.previous(12), 7u);
  EXPECT_EQ(ring.slot(12), ring.slot(ring.previous(12)));
}

TEST(RingState, ProducerStartsOnePhaseAhead) {
  RingState consumer, producer = RingState::producer_start();
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(consumer.index, producer.index);
    EXPECT_NE(consumer.phase, producer.phase);
    consumer.advance(3);
    producer.advance(3);
  }
  EXPECT_EQ(consumer.index, 1u);
  EXPECT_EQ(consumer.phase, 0u);
}

TEST(RankSet, HoldsSeventyTwoRanks) {
  RankSet set;
  EXPECT_TRUE(set.empty());
  set.insert(71);
  set.insert(0);
  EXPECT_TRUE(set.contains(71));
  EXPECT_TRUE(set.contains(0));
  EXPECT_FALSE(set.contains(7));
}

TEST(Banks, DoNotOverlap) {
  RankView view;
  view.spec = {{128, 64, 4, 2}, 2, 20, 8, 4, 4};
  view.layout = Workspace::plan(view.spec);
  view.stride_bytes = view.layout.bytes;
  std::vector<char> memory(2 * view.stride_bytes);
  view.flat_base = memory.data();
  const Banks a(view, 0), b(view, 1);
  EXPECT_EQ(b.header - a.header, 2);
  EXPECT_EQ(b.slot_ranges - a.slot_ranges, 2 * 2);
  EXPECT_EQ(b.tokens_full - a.tokens_full, static_cast<int64_t>(view.spec.max_blocks()));
  EXPECT_EQ(b.tickets - a.tickets, 4);
}

}  // namespace
}  // namespace megamoe::protocol
