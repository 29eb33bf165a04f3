// Inputs, values to compare with, and outputs.
#include "io/layer_files.h"

#include <cmath>
#include <tuple>

#include "io_test_util.h"

namespace megamoe::io {
namespace {

using test::TempDir;

const std::string kFixtures = MEGAMOE_SOURCE_DIR "/tests/fixtures/";

StoredTensors good_inputs() {
  return {{"hidden_states", stored(FileDType::kBFloat16, {3, 128}, std::vector<uint16_t>(3 * 128, 0x3f80))},
          {"topk_ids", stored<int64_t>(FileDType::kInt64, {3, 2}, {0, 1, -1, 3, 4, 1LL << 40})},
          {"topk_weights", stored<float>(FileDType::kFloat32, {3, 2}, {1, 2, 3, 4, 5, 6})}};
}

Result<LayerInputs> read(const StoredTensors& tensors) {
  const TempDir dir;
  EXPECT_TRUE(write_tensors(dir.file("in.safetensors"), tensors).ok());
  return read_layer_inputs(dir.file("in.safetensors"));
}

TEST(LayerInputs, ReadsBothFixtures) {
  for (const std::string fixture : {"deepseek_v3", "deepseek_v3_fp8"}) {
    const auto inputs = read_layer_inputs(kFixtures + fixture + "/moe_layer_io.safetensors");
    ASSERT_TRUE(inputs.ok()) << inputs.status().message();
    EXPECT_EQ(inputs->num_tokens, 123u);
    EXPECT_EQ(inputs->hidden, 256u);
    EXPECT_EQ(inputs->top_k, 4u);
    ASSERT_EQ(inputs->hidden_states.size(), 123u * 256);
    ASSERT_EQ(inputs->topk_ids.size(), 123u * 4);
    ASSERT_EQ(inputs->topk_weights.size(), 123u * 4);
    for (const int64_t id : inputs->topk_ids.span()) EXPECT_TRUE(id >= 0 && id < 16);
    // The router's weights are normalised and scaled by 2.5.
    for (uint64_t token = 0; token < 123; ++token) {
      float sum = 0;
      for (uint64_t slot = 0; slot < 4; ++slot) sum += inputs->topk_weights[token * 4 + slot];
      EXPECT_NEAR(sum, 2.5f, 1e-5f);
    }
  }
}

TEST(LayerInputs, IdsMayBe32BitAndWeightsBf16) {
  StoredTensors tensors = good_inputs();
  tensors["topk_ids"] = stored<int32_t>(FileDType::kInt32, {3, 2}, {0, -1, INT32_MIN, 3, 4, INT32_MAX});
  tensors["topk_weights"] = stored<uint16_t>(FileDType::kBFloat16, {3, 2}, {0x3f80, 0, 0x4000, 0x7fc0, 0, 0});
  const auto inputs = read(tensors);
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  EXPECT_EQ(inputs->topk_ids[1], -1);
  EXPECT_EQ(inputs->topk_ids[2], INT32_MIN);
  EXPECT_EQ(inputs->topk_weights[2], 2.0f);
}

TEST(LayerInputs, NoTokensAreValid) {
  const auto inputs = read({{"hidden_states", stored<uint16_t>(FileDType::kBFloat16, {0, 128}, {})},
                            {"topk_ids", stored<int64_t>(FileDType::kInt64, {0, 2}, {})},
                            {"topk_weights", stored<float>(FileDType::kFloat32, {0, 2}, {})}});
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  EXPECT_EQ(inputs->num_tokens, 0u);
  EXPECT_EQ(inputs->top_k, 2u);
}

TEST(LayerInputs, MissingTensorsAreNamedWithWhatIsThere) {
  for (const std::string name : {"hidden_states", "topk_ids", "topk_weights"}) {
    StoredTensors tensors = good_inputs();
    tensors.erase(name);
    expect_error(read(tensors).status(), Code::kBadFile, {"\"" + name + "\" must be there", "found "});
  }
  StoredTensors tensors = good_inputs();
  tensors.erase("topk_ids");
  expect_error(read(tensors).status(), Code::kBadFile, {"(or \"experts_in1\")"});
}

TEST(LayerInputs, OneMeaningUnderTwoNamesIsRefused) {
  StoredTensors tensors = good_inputs();
  tensors["experts_in1"] = tensors["topk_ids"];
  expect_error(read(tensors).status(), Code::kBadFile, {"topk_ids and experts_in1", "must not both"});
}

TEST(LayerInputs, OtherTypesAreRefused) {
  const std::vector<std::pair<std::string, StoredTensor>> wrong = {
      {"hidden_states", stored(FileDType::kFloat32, {3, 128}, std::vector<float>(3 * 128))},
      {"hidden_states", stored(FileDType::kFloat8E4M3, {3, 128}, std::vector<uint8_t>(3 * 128))},
      {"topk_ids", stored(FileDType::kFloat32, {3, 2}, std::vector<float>(6))},
      {"topk_ids", stored(FileDType::kUInt64, {3, 2}, std::vector<uint64_t>(6))},
      {"topk_weights", stored(FileDType::kFloat64, {3, 2}, std::vector<double>(6))}};
  for (const auto& [name, tensor] : wrong) {
    StoredTensors tensors = good_inputs();
    tensors[name] = tensor;
    expect_error(read(tensors).status(), Code::kNotSupported, {name, "must be", "convert it"});
  }
}

TEST(LayerInputs, ShapesMustAgree) {
  const std::vector<std::tuple<std::string, std::vector<uint64_t>, std::string>> wrong = {
      {"hidden_states", {1, 3, 128}, "two dimensions"},
      {"hidden_states", {384}, "two dimensions"},
      {"hidden_states", {2, 192}, "each of the 2 rows"},
      {"topk_ids", {2, 3}, "each of the 3 rows"},
      {"topk_ids", {6}, "two dimensions"},
      {"topk_weights", {2, 3}, "the shape of topk_ids"}};
  for (const auto& [name, shape, words] : wrong) {
    StoredTensors tensors = good_inputs();
    tensors[name].shape = shape;
    expect_error(read(tensors).status(), Code::kBadFile, {words});
  }
  expect_error(read({{"hidden_states", stored<uint16_t>(FileDType::kBFloat16, {3, 0}, {})},
                     {"topk_ids", stored<int64_t>(FileDType::kInt64, {3, 0}, {})},
                     {"topk_weights", stored<float>(FileDType::kFloat32, {3, 0}, {})}})
                   .status(),
               Code::kBadFile, {"must have columns"});
}

TEST(Compare, ReadsF32AndBf16) {
  const std::string path = kFixtures + "deepseek_v3/moe_layer_io.safetensors";
  const auto fp32 = read_compare(path, "output_fp32");
  const auto bf16 = read_compare(path, "output");
  ASSERT_TRUE(fp32.ok() && bf16.ok()) << fp32.status().message() << bf16.status().message();
  EXPECT_EQ(fp32->num_rows, 123u);
  EXPECT_EQ(fp32->num_cols, 256u);
  double difference = 0;
  double norm = 0;
  for (uint64_t idx = 0; idx < fp32->values.size(); ++idx) {
    difference += std::pow(fp32->values[idx] - bf16->values[idx], 2);
    norm += std::pow(fp32->values[idx], 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 2e-2);
  expect_error(read_compare(path, "nothing").status(), Code::kBadFile, {"\"nothing\" must be there", "output_fp32"});
  expect_error(read_compare(path, "experts_in1").status(), Code::kNotSupported, {"experts_in1", "F32 or BF16"});
}

TEST(Output, IsWhatCompareReads) {
  const TempDir dir;
  const std::vector<uint16_t> rows = {0x3f80, 0xc000, 0x0000, 0x7fc0};
  ASSERT_TRUE(write_layer_output(dir.file("out.safetensors"), rows, 2, 2, {{"backend", "cpu"}}).ok());
  const auto read_back = read_compare(dir.file("out.safetensors"), "output");
  ASSERT_TRUE(read_back.ok()) << read_back.status().message();
  EXPECT_EQ(read_back->num_rows, 2u);
  EXPECT_EQ(read_back->values[1], -2.0f);
  EXPECT_TRUE(std::isnan(read_back->values[3]));
  expect_error(write_layer_output(dir.file("out.safetensors"), rows, 3, 2, {}), Code::kInvalidArgument, {"\"output\""});
}

}  // namespace
}  // namespace megamoe::io
