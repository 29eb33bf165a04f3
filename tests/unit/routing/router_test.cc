// Every published routing rule against tables of a second implementation; ties, NaN logits and refused settings.
#include "routing/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "routing/logits.h"

namespace megamoe::routing {
namespace {

struct Table {
  std::string name;
  RouterConfig config;
  std::vector<float> bias, logits, weights;
  std::vector<int64_t> ids;
};

template <class T>
void take(std::istream& lines, size_t count, std::vector<T>& values) {
  for (size_t i = 0; i < count; ++i) {
    T value{};
    ASSERT_TRUE(lines >> value);
    values.push_back(value);
  }
}

void read_tables(std::vector<Table>& tables) {
  std::ifstream file(MEGAMOE_SOURCE_DIR "/tests/unit/routing/tables.txt");
  ASSERT_TRUE(file.good());
  std::stringstream lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with('#')) lines << line << '\n';
  }
  std::string word;
  while (lines >> word) {
    ASSERT_EQ(word, "case");
    Table table;
    std::getline(lines >> std::ws, table.name);
    RouterConfig& config = table.config;
    size_t num_tokens = 0;
    ASSERT_TRUE(lines >> word >> num_tokens >> config.num_experts >> config.has_correction_bias >> config.top_k >>
                config.num_groups >> config.topk_groups >> config.renormalize >> config.renormalize_epsilon >>
                config.scaling);
    bool known = false;
    for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSqrtSoftplus}) {
      if (name(scoring) != word) continue;
      config.scoring = scoring;
      known = true;
    }
    ASSERT_TRUE(known) << word;
    take(lines, config.has_correction_bias ? config.num_experts : 0, table.bias);
    for (size_t token = 0; token < num_tokens; ++token) {
      take(lines, config.num_experts, table.logits);
      take(lines, config.top_k, table.ids);
      take(lines, config.top_k, table.weights);
    }
    tables.push_back(table);
  }
}

struct Chosen {
  std::vector<int64_t> ids;
  std::vector<float> weights;
};

Chosen choose(const RouterConfig& config, const std::vector<float>& logits, const std::vector<float>& bias = {}) {
  const size_t num_slots = logits.size() / config.num_experts * config.top_k;
  Chosen chosen{std::vector<int64_t>(num_slots, -7), std::vector<float>(num_slots)};
  choose_experts(config, logits, bias, chosen.ids, chosen.weights);
  return chosen;
}

TEST(Router, ChoosesWhatTheTablesSay) {
  std::vector<Table> tables;
  ASSERT_NO_FATAL_FAILURE(read_tables(tables));
  ASSERT_EQ(tables.size(), 31u);
  for (const Table& table : tables) {
    SCOPED_TRACE(table.name);
    ASSERT_TRUE(validate(table.config).ok()) << validate(table.config).message();
    const Chosen chosen = choose(table.config, table.logits, table.bias);
    EXPECT_EQ(chosen.ids, table.ids);
    ASSERT_EQ(chosen.weights.size(), table.weights.size());
    for (size_t slot = 0; slot < table.weights.size(); ++slot) {
      EXPECT_NEAR(chosen.weights[slot], table.weights[slot], 2e-6f * std::fabs(table.weights[slot]) + 1e-37f)
          << "slot " << slot;
    }
  }
}

TEST(Router, TiesGoToTheLowestIndex) {
  RouterConfig config{.num_experts = 8, .top_k = 3, .renormalize = true};
  const Chosen chosen = choose(config, std::vector<float>(8, 0.25f));
  EXPECT_EQ(chosen.ids, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_FLOAT_EQ(chosen.weights[2], 1.0f / 3);
  config.num_groups = 4;
  config.topk_groups = 2;
  config.has_correction_bias = true;
  config.scoring = Scoring::kSigmoid;
  // Groups 1 and 3 are equally good, and better than the others; both get in, expert 2 stands first.
  const Chosen grouped = choose(config, std::vector<float>(8, 0.25f), {0, 0, 0.5f, 0.5f, 0.25f, 0.25f, 0.5f, 0.5f});
  EXPECT_EQ(grouped.ids, (std::vector<int64_t>{2, 3, 6}));
}

TEST(Router, TheBiasChangesTheChoiceAndNeverTheWeight) {
  const RouterConfig config{.num_experts = 4, .top_k = 1, .scoring = Scoring::kSigmoid, .has_correction_bias = true};
  const Chosen chosen = choose(config, {2, 1, 0, -1}, {0, 0, 0, 5});
  EXPECT_EQ(chosen.ids, (std::vector<int64_t>{3}));
  EXPECT_FLOAT_EQ(chosen.weights[0], 1.0f / (1.0f + std::exp(1.0f)));
}

TEST(Router, ExpertsOfOtherGroupsAreNeverChosen) {
  // Scores with the bias are negative inside the chosen group: a mask of 0 would prefer the experts outside.
  RouterConfig config{.num_experts = 4, .top_k = 2, .scoring = Scoring::kSigmoid, .has_correction_bias = true};
  config.num_groups = 2;
  const Chosen chosen = choose(config, {0, 0, 0, 0}, {-4, -4, -3, -3});
  EXPECT_EQ(chosen.ids, (std::vector<int64_t>{2, 3}));
}

TEST(Router, LogitsThatAreNoNumbersStillGiveDistinctExpertsInRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSqrtSoftplus}) {
    for (const bool grouped : {false, true}) {
      RouterConfig config{.num_experts = 8, .top_k = 4, .scoring = scoring, .has_correction_bias = grouped};
      config.num_groups = grouped ? 4 : 1;
      config.topk_groups = grouped ? 2 : 1;
      const std::vector<float> bias(grouped ? 8 : 0, 0.5f);
      for (const std::vector<float>& logits :
           {std::vector<float>(8, nan), std::vector<float>(8, -infinity), std::vector<float>(8, infinity),
            std::vector<float>{nan, 1, nan, 2, nan, -infinity, 3, infinity}}) {
        std::vector<int64_t> ids = choose(config, logits, bias).ids;
        std::sort(ids.begin(), ids.end());
        EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
        EXPECT_GE(ids.front(), 0);
        EXPECT_LT(ids.back(), 8);
      }
    }
  }
  // A row of NaN leaves its neighbours alone.
  const RouterConfig config{.num_experts = 2, .top_k = 1, .renormalize = true};
  const Chosen chosen = choose(config, {1, 2, nan, nan, 4, 3});
  EXPECT_EQ(chosen.ids, (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(chosen.weights[0], 1.0f);
  EXPECT_EQ(chosen.weights[2], 1.0f);
}

TEST(Router, NamesTheSettingThatCannotBe) {
  const RouterConfig good{.num_experts = 16, .top_k = 4};
  const auto refused = [&](auto change, const std::string& setting) {
    RouterConfig config = good;
    change(config);
    const Status status = validate(config);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr(setting + " must be"));
  };
  EXPECT_TRUE(validate(good).ok());
  refused([](RouterConfig& c) { c.num_experts = 0; }, "num_experts");
  refused([](RouterConfig& c) { c.num_experts = 1025; }, "num_experts");
  refused([](RouterConfig& c) { c.top_k = 0; }, "top_k");
  refused([](RouterConfig& c) { c.top_k = 17; }, "top_k");
  refused([](RouterConfig& c) { c.num_groups = 0; }, "num_groups");
  refused([](RouterConfig& c) { c.num_groups = 3; }, "num_groups");
  refused([](RouterConfig& c) { c.topk_groups = 0; }, "topk_groups");
  refused([](RouterConfig& c) { c.topk_groups = 2; }, "topk_groups");
  refused([](RouterConfig& c) { c.num_groups = 8; }, "topk_groups");  // one group of two for four slots
  refused([](RouterConfig& c) { c.num_groups = 16; }, "num_groups");  // groups of one
  refused([](RouterConfig& c) { c.scaling = 0; }, "scaling");
  refused([](RouterConfig& c) { c.scaling = std::numeric_limits<float>::quiet_NaN(); }, "scaling");
  refused([](RouterConfig& c) { c.renormalize_epsilon = -1; }, "renormalize_epsilon");
  refused([](RouterConfig& c) { c.weight_on_input = true; }, "top_k");
}

TEST(RouterLogits, AreTheProductForBothTypesOfTokens) {
  constexpr uint32_t kHidden = 37;  // no multiple of anything
  constexpr size_t kTokens = 3;
  constexpr size_t kExperts = 5;
  std::vector<uint16_t> bf16(kTokens * kHidden);
  std::vector<float> fp32(bf16.size());
  for (size_t i = 0; i < bf16.size(); ++i) {
    bf16[i] = static_cast<uint16_t>(0x3f00 + i * 13 % 256 + (i % 3 == 0 ? 0x8000 : 0));
    const uint32_t bits = static_cast<uint32_t>(bf16[i]) << 16;
    std::memcpy(&fp32[i], &bits, sizeof(bits));
  }
  std::vector<float> weight(kExperts * kHidden);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = std::sin(static_cast<float>(i));
  const std::vector<float> bias = {1, 2, 3, 4, 5};
  std::vector<float> logits(kTokens * kExperts);
  router_logits(std::span<const uint16_t>(bf16), kHidden, weight, bias, logits);
  for (size_t token = 0; token < kTokens; ++token) {
    for (size_t expert = 0; expert < kExperts; ++expert) {
      double sum = bias[expert];
      for (size_t col = 0; col < kHidden; ++col) {
        sum += double{fp32[token * kHidden + col]} * weight[expert * kHidden + col];
      }
      EXPECT_NEAR(logits[token * kExperts + expert], sum, 2e-5);
    }
  }
  std::vector<float> same(logits.size());
  router_logits(std::span<const float>(fp32), kHidden, weight, bias, same);
  EXPECT_EQ(same, logits);
  // Alone or among others: the same bits.
  std::vector<float> last(kExperts);
  router_logits(std::span(bf16).subspan(2 * kHidden), kHidden, weight, bias, last);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), logits.end() - kExperts));
}

}  // namespace
}  // namespace megamoe::routing
