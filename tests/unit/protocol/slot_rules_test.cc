// The rules of slots by hand: where ids go, and with which weight.
#include "protocol/slot_rules.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <vector>

namespace megamoe::protocol {
namespace {

/// 2 ranks of 3 routed experts each, top-3.
SlotRules plain_rules(uint32_t rank = 0) {
  SlotRules rules;
  rules.rank = rank;
  rules.routed_slots = 3;
  rules.num_ids = rules.num_physical = 6;
  rules.routed_local = 3;
  return rules;
}

int32_t expert_of(const SlotRules& rules, uint32_t token, int64_t id) { return routed_expert(rules, token, id); }

TEST(SlotRules, WithoutExtrasAnIdIsItsExpert) {
  const SlotRules rules = plain_rules();
  EXPECT_FALSE(rules.changes_ids());
  for (int64_t id = 0; id < 6; ++id) EXPECT_EQ(expert_of(rules, 0, id), id);
  EXPECT_EQ(expert_of(rules, 0, -1), kMaskedSlot);
  for (const int64_t id : {int64_t{-2}, int64_t{6}, int64_t{1} << 32, std::numeric_limits<int64_t>::min()})
    EXPECT_EQ(expert_of(rules, 0, id), kBadSlot) << id;
}

TEST(SlotRules, SharedExpertsFollowTheRoutedOnesOfTheirRank) {
  SlotRules rules = plain_rules(1);
  rules.shared_experts = 2;
  EXPECT_TRUE(rules.changes_ids());
  // Rank 0: routed 0 1 2, shared 3 4; rank 1: routed 5 6 7, shared 8 9.
  const int32_t expected[] = {0, 1, 2, 5, 6, 7};
  for (int64_t id = 0; id < 6; ++id) EXPECT_EQ(expert_of(rules, 0, id), expected[id]);
  const auto no_id = [](uint32_t, uint32_t) -> int64_t { throw std::logic_error("a shared expert has no id"); };
  EXPECT_EQ(slot_expert(rules, 7, 3, no_id), 8);
  EXPECT_EQ(slot_expert(rules, 7, 4, no_id), 9);
  EXPECT_EQ(expert_of(rules, 0, 6), kBadSlot);
}

TEST(SlotRules, CopiesEndAtTheFirstMinusOne) {
  SlotRules rules = plain_rules(1);
  const std::vector<int32_t> map = {4, 0, 5, 2, -1, -1, -1, 3, -1, 1, 9, -1};  // [4][3]
  rules.num_ids = 4;
  rules.expert_map = map.data();
  rules.map_expert_stride = 3;
  rules.map_copy_stride = 1;
  rules.max_copies = 3;
  EXPECT_EQ(expert_of(rules, 0, 0), 0);  // (token 0 + rank 1) mod 3
  EXPECT_EQ(expert_of(rules, 1, 0), 5);
  EXPECT_EQ(expert_of(rules, 2, 0), 4);
  EXPECT_EQ(expert_of(rules, 0, 1), 2);
  EXPECT_EQ(expert_of(rules, 9, 1), 2);
  EXPECT_EQ(expert_of(rules, 0, 2), kMaskedSlot);  // what comes after the end is not a copy
  EXPECT_EQ(expert_of(rules, 0, 3), kBadSlot);
  EXPECT_EQ(expert_of(rules, 1, 3), 1);
  EXPECT_EQ(expert_of(rules, 0, 4), kBadSlot);
  EXPECT_TRUE(rules.is_map_value(-1) && rules.is_map_value(5));
  EXPECT_FALSE(rules.is_map_value(-2) || rules.is_map_value(6));
}

TEST(SlotRules, ExpertsOfAbsentRanksAreMasked) {
  SlotRules rules = plain_rules();
  rules.absent.insert(1);
  const int32_t expected[] = {0, 1, 2, kMaskedSlot, kMaskedSlot, kMaskedSlot};
  for (int64_t id = 0; id < 6; ++id) EXPECT_EQ(expert_of(rules, 0, id), expected[id]);
  rules.shared_experts = 1;
  EXPECT_EQ(expert_of(rules, 0, 2), 2);
  EXPECT_EQ(expert_of(rules, 0, 3), kMaskedSlot);
}

TEST(SlotRules, WeightsAreScaledAndMadeUp) {
  SlotRules rules = plain_rules();
  rules.absent.insert(1);
  rules.shared_experts = 1;
  rules.routed_scaling = 2.0f;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const int64_t ids[][3] = {{0, 4, 2}, {0, -1, 2}, {3, 4, 5}, {0, 5, -1}};
  const float weights[][3] = {{.25f, .5f, .25f}, {.25f, kNan, .25f}, {.5f, .25f, .25f}, {0.0f, 1.0f, kNan}};
  const auto id_at = [&](uint32_t token, uint32_t slot) { return ids[token][slot]; };
  const auto weight_at = [&](uint32_t token, uint32_t slot) { return weights[token][slot]; };
  EXPECT_EQ(slot_weight(rules, 0, 0, id_at, weight_at), 0.5f);
  rules.renormalizes = true;
  EXPECT_EQ(slot_weight(rules, 0, 0, id_at, weight_at), 1.0f);  // half of the sum is missing: x 2, scaled x 2
  EXPECT_EQ(slot_weight(rules, 0, 2, id_at, weight_at), 1.0f);
  EXPECT_EQ(slot_weight(rules, 1, 2, id_at, weight_at), 0.5f);  // the caller's own masks are not made up for
  EXPECT_EQ(make_up_factor(rules, 2, id_at, weight_at), 1.0f);  // nothing is left
  EXPECT_EQ(make_up_factor(rules, 3, id_at, weight_at), 1.0f);  // what is left weighs nothing
  EXPECT_EQ(slot_weight(rules, 0, 3, id_at, weight_at), 1.0f);  // shared
  const float shared[] = {.1f, .2f, .3f, .4f};
  rules.shared_weights = shared;
  rules.shared_token_stride = 1;
  EXPECT_EQ(slot_weight(rules, 2, 3, id_at, weight_at), .3f);
}

}  // namespace
}  // namespace megamoe::protocol
