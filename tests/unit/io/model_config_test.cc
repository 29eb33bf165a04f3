// config.json: every key by name, nothing guessed.
#include "io/model_config.h"

#include "io_test_util.h"

namespace megamoe::io {
namespace {

using Keys = std::map<std::string, std::string>;

Keys deepseek_keys() {
  return {{"model_type", "\"deepseek_v3\""},
          {"hidden_size", "7168"},
          {"intermediate_size", "18432"},
          {"moe_intermediate_size", "2048"},
          {"n_routed_experts", "256"},
          {"num_experts_per_tok", "8"},
          {"quantization_config", R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]})"}};
}

Result<ModelConfig> parse(const Keys& keys) {
  std::string text = "{";
  for (const auto& [key, value] : keys) text += (text.size() > 1 ? ",\"" : "\"") + key + "\":" + value;
  return parse_model_config(text + "}", "here");
}

/// DeepSeek-V3 with one key changed; an empty value removes it.
Result<ModelConfig> parse_with(const std::string& key, const std::string& value) {
  Keys keys = deepseek_keys();
  if (value.empty()) {
    keys.erase(key);
  } else {
    keys[key] = value;
  }
  return parse(keys);
}

TEST(ModelConfig, ReadsDeepSeekV3) {
  Keys keys = deepseek_keys();
  keys["n_shared_experts"] = "1";
  keys["routed_scaling_factor"] = "2.5";
  keys["swiglu_limit"] = "10";
  keys["num_hidden_layers"] = "61";
  const auto config = parse(keys);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->shape, (MoeShape{7168, 2048, 256, 8}));
  EXPECT_EQ(config->model_type, "deepseek_v3");
  EXPECT_EQ(config->num_shared_experts, 1u);
  EXPECT_EQ(config->routed_scaling_factor, 2.5);
  EXPECT_EQ(config->swiglu_limit, 10.0f);
  EXPECT_EQ(config->num_layers, 61u);
  EXPECT_TRUE(config->quantized_fp8());
}

TEST(ModelConfig, OptionalKeysStayEmpty) {
  Keys keys = deepseek_keys();
  keys.erase("quantization_config");
  keys["swiglu_limit"] = "null";
  const auto config = parse(keys);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_FALSE(config->swiglu_limit.has_value());
  EXPECT_FALSE(config->routed_scaling_factor.has_value());
  EXPECT_FALSE(config->num_shared_experts.has_value());
  EXPECT_FALSE(config->quantized_fp8());
}

TEST(ModelConfig, ReadsTheFixtures) {
  for (const std::string name : {"deepseek_v3", "deepseek_v3_fp8"}) {
    const auto config = read_model_config(MEGAMOE_SOURCE_DIR "/tests/fixtures/" + name);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->shape, (MoeShape{256, 128, 16, 4}));
    EXPECT_EQ(config->routed_scaling_factor, 2.5);
    EXPECT_EQ(config->quantized_fp8(), name == "deepseek_v3_fp8");
  }
}

TEST(ModelConfig, WidthIsIntermediateSizeOnlyForFamiliesThatSaySo) {
  for (const std::string type : {"mixtral", "minimax_m2", "llama4_text"}) {
    const auto config = parse({{"model_type", "\"" + type + "\""},
                               {"hidden_size", "4096"},
                               {"intermediate_size", "14336"},
                               {"num_local_experts", "8"},
                               {"num_experts_per_tok", "2"}});
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->shape.intermediate, 14336u);
  }
  expect_error(parse_with("moe_intermediate_size", "").status(), Code::kBadFile,
               {"moe_intermediate_size", "no such key"});
}

TEST(ModelConfig, MissingKeysAreNamed) {
  for (const std::string key : {"hidden_size", "moe_intermediate_size", "num_experts_per_tok"}) {
    for (const std::string value : {"", "null"}) {
      expect_error(parse_with(key, value).status(), Code::kBadFile, {"here: " + key, "no such key"});
    }
  }
  expect_error(parse_with("n_routed_experts", "").status(), Code::kBadFile,
               {"n_routed_experts | num_experts | num_local_experts", "none of these keys"});
  expect_error(parse_with("num_experts", "256").status(), Code::kBadFile, {"n_routed_experts and num_experts", "once"});
}

TEST(ModelConfig, NumbersMustBePositiveIntegersInRange) {
  for (const std::string key : {"hidden_size", "moe_intermediate_size", "num_experts_per_tok", "n_routed_experts"}) {
    for (const std::string value :
         {"0", "-128", "128.0", "1e2", "\"128\"", "true", "[128]", "{}", "99999999999999999999"}) {
      expect_error(parse_with(key, value).status(), Code::kBadFile, {key, "an integer from 1 to"});
    }
  }
  expect_error(parse_with("n_routed_experts", "1025").status(), Code::kBadFile, {"1 to 1024", "got 1025"});
  expect_error(parse_with("num_experts_per_tok", "33").status(), Code::kBadFile, {"1 to 32", "got 33"});
  expect_error(parse_with("n_routed_experts", "4").status(), Code::kBadFile, {"num_experts_per_tok", "at most the 4"});
  expect_error(parse_with("n_shared_experts", "-1").status(), Code::kBadFile, {"n_shared_experts"});
}

TEST(ModelConfig, SizesThatTheLayerDoesNotRunAreRefused) {
  expect_error(parse_with("hidden_size", "7100").status(), Code::kNotSupported,
               {"hidden_size", "multiple of 128", "7100"});
  expect_error(parse_with("moe_intermediate_size", "2000").status(), Code::kNotSupported,
               {"moe_intermediate_size", "multiple of 64", "2000"});
  EXPECT_TRUE(parse_with("moe_intermediate_size", "2112").ok());
}

TEST(ModelConfig, ActivationMustBeSwiGlu) {
  EXPECT_TRUE(parse_with("hidden_act", "\"silu\"").ok());
  expect_error(parse_with("hidden_act", "\"gelu\"").status(), Code::kNotSupported, {"hidden_act", "\"gelu\""});
  for (const std::string value : {"0", "-1", "0.0", "\"10\"", "1e-60", "1e60"}) {
    expect_error(parse_with("swiglu_limit", value).status(), Code::kBadFile, {"swiglu_limit", "a positive number"});
  }
  expect_error(parse_with("routed_scaling_factor", "-2.5").status(), Code::kBadFile, {"routed_scaling_factor", "-2.5"});
}

TEST(ModelConfig, QuantisationMustBeFp8In128Blocks) {
  const auto refused = [](const std::string& value, Code code, const std::vector<std::string>& words) {
    expect_error(parse_with("quantization_config", value).status(), code, words);
  };
  refused(R"({"quant_method":"fp8","weight_block_size":[64,128]})", Code::kNotSupported,
          {"quantization_config.weight_block_size", "[128, 128]", "[64, 128]"});
  refused(R"({"quant_method":"fp8","weight_block_size":[128,128,128]})", Code::kNotSupported, {"weight_block_size"});
  refused(R"({"quant_method":"fp8","weight_block_size":[128.0,128]})", Code::kNotSupported, {"weight_block_size"});
  refused(R"({"quant_method":"fp8","weight_block_size":128})", Code::kNotSupported, {"weight_block_size", "got 128"});
  refused(R"({"quant_method":"fp8"})", Code::kBadFile, {"weight_block_size", "no such key"});
  refused(R"({"weight_block_size":[128,128]})", Code::kBadFile, {"quantization_config.quant_method", "no such key"});
  refused(R"({"quant_method":"awq","bits":4})", Code::kNotSupported,
          {"quant_method must be \"fp8\" or \"mxfp4\"", "got \"awq\" (bits 4)"});
  refused(R"({"quant_method":"modelopt","quant_algo":"NVFP4"})", Code::kNotSupported,
          {"\"modelopt\" (quant_algo \"NVFP4\")"});
  refused(R"({"quant_method":"compressed-tensors","format":"pack-quantized"})", Code::kNotSupported,
          {"\"compressed-tensors\" (format \"pack-quantized\")"});
  refused(R"({"quant_method":"fp8","fmt":"e5m2","weight_block_size":[128,128]})", Code::kNotSupported, {"fmt", "e5m2"});
  refused(R"({"quant_method":"fp8","activation_scheme":"static","weight_block_size":[128,128]})", Code::kNotSupported,
          {"activation_scheme", "static"});
  refused("\"fp8\"", Code::kBadFile, {"quantization_config", "an object"});
}

TEST(ModelConfig, E4m3IsKnownUnderBothNames) {
  for (const std::string fmt : {"e4m3", "float8_e4m3fn"}) {
    EXPECT_TRUE(parse_with("quantization_config",
                           R"({"quant_method":"fp8","fmt":")" + fmt + R"(","weight_block_size":[128,128]})")
                    .ok());
  }
  expect_error(parse_with("quantization_config",
                          R"({"quant_method":"fp8","fmt":"float8_e4m3fnuz","weight_block_size":[128,128]})")
                   .status(),
               Code::kNotSupported, {"fmt", "float8_e4m3fnuz"});
}

TEST(ModelConfig, KnowsMxfp4) {
  EXPECT_EQ(parse_with("quantization_config", R"({"quant_method":"mxfp4"})")->quantization, Quantization::kMxfp4);
  EXPECT_TRUE(parse_with("expert_dtype", "\"fp4\"")->fp4_experts);
  EXPECT_FALSE(parse_with("expert_dtype", "\"fp8\"")->fp4_experts);
}

TEST(ModelConfig, TheTextPartOfALargerModelIsTaken) {
  const std::string part =
      R"({"model_type":"llama4_text","hidden_size":256,"intermediate_size":512,"num_local_experts":8,)"
      R"("num_experts_per_tok":1})";
  const auto config = parse({{"model_type", "\"llama4\""},
                             {"text_config", part},
                             {"quantization_config", R"({"quant_method":"fp8","weight_block_size":[128,128]})"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->shape, (MoeShape{256, 512, 8, 1}));
  EXPECT_EQ(config->model_type, "llama4_text");
  EXPECT_TRUE(config->quantized_fp8());
  expect_error(parse({{"text_config", R"({"hidden_size":256})"}}).status(), Code::kBadFile,
               {"here: text_config.n_routed_experts"});
  expect_error(parse({{"text_config", R"({"hidden_size":"x"})"}}).status(), Code::kBadFile,
               {"here: text_config.hidden_size"});
}

TEST(ModelConfig, ModelsWhoseExpertsAreNoSwiGluAreRefusedByName) {
  expect_error(parse_with("model_type", "\"gpt_oss\"").status(), Code::kNotSupported,
               {"model_type", "\"gpt_oss\"", "alpha 1.702"});
  expect_error(parse_with("swiglu_alpha", "1.702").status(), Code::kNotSupported, {"swiglu_alpha", "1.702"});
  expect_error(parse_with("model_type", "\"minimax_m3_vl\"").status(), Code::kNotSupported, {"minimax_m3_vl"});
}

TEST(ModelConfig, RefusesWhatIsNoConfig) {
  expect_error(parse_model_config("[]", "here").status(), Code::kBadFile, {"here: ", "a JSON object"});
  expect_error(parse_model_config("{", "here").status(), Code::kBadFile, {"valid JSON"});
  expect_error(parse_model_config(R"({"hidden_size":1,"hidden_size":2})", "here").status(), Code::kBadFile,
               {"\"hidden_size\" occurs twice"});
  const test::TempDir dir;
  expect_error(read_model_config(dir.path()).status(), Code::kBadFile, {"config.json", "No such file"});
  dir.write("config.json", std::string(5'000'000, ' '));
  expect_error(read_model_config(dir.path()).status(), Code::kBadFile, {"config.json", "at most 4000000 bytes"});
}

}  // namespace
}  // namespace megamoe::io
