// Which router a config.json describes: every family, and every key that a family needs.
#include "io/model_config.h"
#include "io_test_util.h"

namespace megamoe::io {
namespace {

using routing::RouterConfig;
using routing::Scoring;

Result<RouterConfig> router(const std::string& model_type, const std::string& more) {
  const std::string width =
      model_type == "mixtral" || model_type.starts_with("minimax") || model_type.starts_with("llama4")
          ? "intermediate_size"
          : "moe_intermediate_size";
  const std::string top_k = model_type.starts_with("llama4") ? "1" : "4";
  const auto config = parse_model_config(R"({"model_type":")" + model_type + R"(","hidden_size":256,")" + width +
                                             R"(":128,"num_experts":16,"num_experts_per_tok":)" + top_k +
                                             (more.empty() ? "" : "," + more) + "}",
                                         "here");
  if (!config.ok()) return config.status();
  return router_config(config.value(), "here");
}

const std::map<std::string, std::string> kDeepSeekKeys = {
    {"n_group", "4"}, {"topk_group", "2"}, {"norm_topk_prob", "true"}, {"routed_scaling_factor", "2.5"}};

std::string joined(std::map<std::string, std::string> keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += (text.empty() ? "\"" : ",\"") + key + "\":" + value;
  return text;
}

TEST(RouterConfig, DeepSeekV3AndItsKin) {
  for (const std::string type : {"deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe", "glm4_moe_lite",
                                 "glm4v_moe_text", "glm_moe_dsa", "dots1"}) {
    const auto config = router(type, joined(kDeepSeekKeys));
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->num_experts, 16u);
    EXPECT_EQ(config->top_k, 4u);
    EXPECT_EQ(config->scoring, Scoring::kSigmoid);
    EXPECT_TRUE(config->has_correction_bias);
    EXPECT_EQ(config->num_groups, 4u);
    EXPECT_EQ(config->topk_groups, 2u);
    EXPECT_TRUE(config->renormalize);
    EXPECT_EQ(config->renormalize_epsilon, 1e-20f);
    EXPECT_EQ(config->scaling, 2.5f);
    EXPECT_FALSE(config->weight_on_input);
  }
}

TEST(RouterConfig, EveryKeyThatARuleNeedsMustBeThere) {
  for (const auto& [key, value] : kDeepSeekKeys) {
    auto keys = kDeepSeekKeys;
    keys.erase(key);
    expect_error(router("deepseek_v3", joined(keys)).status(), Code::kBadFile,
                 {"here: " + key + " must be given", "deepseek_v3", "nothing is assumed"});
  }
  for (const std::string type : {"qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text", "qwen3_omni_moe_text"}) {
    expect_error(router(type, "").status(), Code::kBadFile, {"norm_topk_prob must be given", type});
  }
  expect_error(router("deepseek_v4", R"("routed_scaling_factor":1.5)").status(), Code::kBadFile, {"scoring_func"});
  expect_error(router("deepseek_v4", R"("scoring_func":"sqrtsoftplus")").status(), Code::kBadFile,
               {"routed_scaling_factor"});
}

TEST(RouterConfig, DotsHasNoGroupsUnlessItSaysSo) {
  const auto config = router("dots1", R"("n_group":null,"norm_topk_prob":true,"routed_scaling_factor":2.5)");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_groups, 1u);
  EXPECT_EQ(config->topk_groups, 1u);
  expect_error(router("dots1", R"("n_group":4,"norm_topk_prob":true,"routed_scaling_factor":2.5)").status(),
               Code::kBadFile, {"topk_group must be given"});
}

TEST(RouterConfig, TheOtherRules) {
  const auto v4 = router("deepseek_v4", R"("scoring_func":"sqrtsoftplus","routed_scaling_factor":1.5)");
  ASSERT_TRUE(v4.ok()) << v4.status().message();
  EXPECT_EQ(v4->scoring, Scoring::kSqrtSoftplus);
  EXPECT_TRUE(v4->has_correction_bias && v4->renormalize);
  EXPECT_EQ(v4->scaling, 1.5f);
  EXPECT_EQ(v4->num_groups, 1u);

  for (const bool renormalize : {false, true}) {
    const auto qwen = router("qwen3_moe", std::string("\"norm_topk_prob\":") + (renormalize ? "true" : "false"));
    ASSERT_TRUE(qwen.ok()) << qwen.status().message();
    EXPECT_EQ(qwen->scoring, Scoring::kSoftmax);
    EXPECT_EQ(qwen->renormalize, renormalize);
    EXPECT_FALSE(qwen->has_correction_bias);
    EXPECT_EQ(qwen->scaling, 1.0f);
  }
  for (const std::string type : {"mixtral", "minimax", "qwen3_5_moe", "qwen3_5_moe_text"}) {
    const auto config = router(type, "");
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->scoring, Scoring::kSoftmax);
    EXPECT_TRUE(config->renormalize);
    EXPECT_EQ(config->renormalize_epsilon, 0.0f);
  }
  const auto minimax = router("minimax_m2", R"("scoring_func":"sigmoid")");
  ASSERT_TRUE(minimax.ok()) << minimax.status().message();
  EXPECT_EQ(minimax->scoring, Scoring::kSigmoid);
  EXPECT_TRUE(minimax->has_correction_bias && minimax->renormalize);
  const auto llama = router("llama4_text", "");
  ASSERT_TRUE(llama.ok()) << llama.status().message();
  EXPECT_EQ(llama->scoring, Scoring::kSigmoid);
  EXPECT_TRUE(llama->weight_on_input);
  EXPECT_FALSE(llama->renormalize || llama->has_correction_bias);
}

TEST(RouterConfig, WhatContradictsTheModelIsRefused) {
  const std::string keys = joined(kDeepSeekKeys);
  expect_error(router("deepseek_v3", keys + R"(,"scoring_func":"softmax")").status(), Code::kNotSupported,
               {"scoring_func must be \"sigmoid\"", "got \"softmax\""});
  expect_error(router("deepseek_v3", keys + R"(,"topk_method":"greedy")").status(), Code::kNotSupported,
               {"topk_method must be \"noaux_tc\""});
  expect_error(router("deepseek_v4", R"("scoring_func":"sigmoid","routed_scaling_factor":1.5)").status(),
               Code::kNotSupported, {"scoring_func must be \"sqrtsoftplus\""});
  expect_error(router("minimax_m2", R"("scoring_func":"softmax")").status(), Code::kNotSupported, {"scoring_func"});
  expect_error(router("minimax", R"("scoring_func":"sigmoid")").status(), Code::kNotSupported,
               {"scoring_func must be \"softmax\""});
  for (const std::string type : {"mixtral", "minimax_m2", "qwen3_5_moe_text"}) {
    expect_error(router(type, R"("norm_topk_prob":false)").status(), Code::kNotSupported,
                 {"norm_topk_prob must be true"});
  }
  auto groups = kDeepSeekKeys;
  groups["n_group"] = "3";
  expect_error(router("deepseek_v3", joined(groups)).status(), Code::kBadFile, {"num_groups", "divisor of the 16"});
  groups["n_group"] = "\"4\"";
  expect_error(router("deepseek_v3", joined(groups)).status(), Code::kBadFile, {"n_group", "an integer"});
  groups = kDeepSeekKeys;
  groups["norm_topk_prob"] = "1";
  expect_error(router("deepseek_v3", joined(groups)).status(), Code::kBadFile, {"norm_topk_prob", "true or false"});
}

TEST(RouterConfig, AnUnknownModelIsRefusedWithTheKnownOnes) {
  expect_error(router("new_moe", joined(kDeepSeekKeys)).status(), Code::kNotSupported,
               {"model_type", "got \"new_moe\"", "deepseek_v3", "llama4_text", "topk_ids"});
}

}  // namespace
}  // namespace megamoe::io
