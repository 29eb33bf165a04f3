// Loading a layer: the values of the fixtures, and parts of a layer.
#include "io/moe_weights.h"

#include <cmath>
#include <limits>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "io/checkpoint.h"
#include "io/layer_files.h"
#include "io_test_util.h"

namespace megamoe::io {
namespace {

const std::string kFixtures = MEGAMOE_SOURCE_DIR "/tests/fixtures/";

/// An unquantised layer in double precision, over the loaded weights.
std::vector<double> run_layer(const LayerWeights& weights, const LayerInputs& inputs) {
  const uint64_t hidden = weights.shape().hidden;
  const uint64_t intermediate = weights.shape().intermediate;
  const uint64_t row_blocks = (intermediate + 127) / 128;
  const uint64_t k_blocks = hidden / 128;
  std::vector<double> output(inputs.num_tokens * hidden);
  std::vector<double> activation(intermediate);
  for (uint64_t slot = 0; slot < inputs.num_tokens * inputs.top_k; ++slot) {
    const uint64_t token = slot / inputs.top_k;
    const uint64_t expert = static_cast<uint64_t>(inputs.topk_ids[slot]);
    const auto w13_row = [&](uint64_t half, uint64_t row) {
      double sum = 0;
      for (uint64_t col = 0; col < hidden; ++col) {
        const uint8_t code = weights.w13[((expert * 2 + half) * intermediate + row) * hidden + col];
        const float scale = weights.w13_scale[((expert * 2 + half) * row_blocks + row / 128) * k_blocks + col / 128];
        sum += double{core::e4m3_decode(code)} * scale * core::bf16_decode(inputs.hidden_states[token * hidden + col]);
      }
      return sum;
    };
    for (uint64_t row = 0; row < intermediate; ++row) {
      const double gate = w13_row(0, row);
      activation[row] = gate / (1 + std::exp(-gate)) * w13_row(1, row);
    }
    for (uint64_t row = 0; row < hidden; ++row) {
      double sum = 0;
      for (uint64_t col = 0; col < intermediate; ++col) {
        const float scale = weights.w2_scale[(expert * k_blocks + row / 128) * row_blocks + col / 128];
        sum += double{core::e4m3_decode(weights.w2[(expert * hidden + row) * intermediate + col])} * scale *
               activation[col];
      }
      output[token * hidden + row] += sum * inputs.topk_weights[slot];
    }
  }
  return output;
}

double max_row_rel_l2(const std::vector<double>& got, const FloatRows& wanted) {
  double worst = 0;
  for (uint64_t row = 0; row < wanted.num_rows; ++row) {
    double difference = 0;
    double norm = 0;
    for (uint64_t col = 0; col < wanted.num_cols; ++col) {
      const double value = wanted.values[row * wanted.num_cols + col];
      difference += std::pow(got[row * wanted.num_cols + col] - value, 2);
      norm += value * value;
    }
    worst = std::max(worst, std::sqrt(difference / norm));
  }
  return worst;
}

double fixture_error(const std::string& fixture, const std::string& tensor_name) {
  const auto weights = load_moe_layer(kFixtures + fixture, 1);
  EXPECT_TRUE(weights.ok()) << weights.status().message();
  const auto inputs = read_layer_inputs(kFixtures + fixture + "/moe_layer_io.safetensors");
  EXPECT_TRUE(inputs.ok()) << inputs.status().message();
  const auto wanted = read_compare(kFixtures + fixture + "/moe_layer_io.safetensors", tensor_name);
  EXPECT_TRUE(wanted.ok()) << wanted.status().message();
  if (!weights.ok() || !inputs.ok() || !wanted.ok()) return std::numeric_limits<double>::infinity();
  return max_row_rel_l2(run_layer(weights.value(), inputs.value()), wanted.value());
}

TEST(MoeWeights, Fp8FixtureGivesWhatTransformersComputed) {
  EXPECT_LT(fixture_error("deepseek_v3_fp8", "routed_out_fp32_dequant_weights"), 1e-5);
}

TEST(MoeWeights, Bf16FixturePackedStaysNearWhatTransformersComputed) {
  const double error = fixture_error("deepseek_v3", "experts_out");
  EXPECT_LT(error, 7e-2);  // Three matrices with weights rounded to three fraction bits.
  EXPECT_GT(error, 1e-3);  // Packing costs something; less would mean that nothing was packed.
}

TEST(MoeWeights, Fp8BytesAreTakenAsTheyAre) {
  const auto weights = load_moe_layer(kFixtures + "deepseek_v3_fp8", 1);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->num_local_experts(), 16u);
  EXPECT_EQ(weights->w13.size(), 16u * 2 * 128 * 256);
  EXPECT_EQ(weights->w2.size(), 16u * 256 * 128);
  EXPECT_EQ(weights->w13_scale.size(), 16u * 2 * 1 * 2);
  EXPECT_EQ(weights->w2_scale.size(), 16u * 2 * 1);
  const auto checkpoint = Checkpoint::open(kFixtures + "deepseek_v3_fp8");
  ASSERT_TRUE(checkpoint.ok());
  const auto bytes_are = [&](const std::string& name, const void* loaded, size_t num_bytes) {
    const Checkpoint::Tensor tensor = checkpoint->find(name);
    ASSERT_NE(tensor.info, nullptr);
    std::vector<std::byte> stored_bytes(tensor.info->num_bytes);
    ASSERT_TRUE(tensor.file->read(*tensor.info, stored_bytes).ok());
    ASSERT_EQ(stored_bytes.size(), num_bytes);
    EXPECT_EQ(std::memcmp(stored_bytes.data(), loaded, num_bytes), 0) << name;
  };
  for (uint64_t expert = 0; expert < 16; ++expert) {
    const std::string prefix = "model.layers.1.mlp.experts." + std::to_string(expert);
    bytes_are(prefix + ".gate_proj.weight", &weights->w13[(expert * 2 + 0) * 128 * 256], 128 * 256);
    bytes_are(prefix + ".up_proj.weight", &weights->w13[(expert * 2 + 1) * 128 * 256], 128 * 256);
    bytes_are(prefix + ".down_proj.weight", &weights->w2[expert * 256 * 128], 256 * 128);
    bytes_are(prefix + ".gate_proj.weight_scale_inv", &weights->w13_scale[(expert * 2 + 0) * 2], 8);
    bytes_are(prefix + ".up_proj.weight_scale_inv", &weights->w13_scale[(expert * 2 + 1) * 2], 8);
    bytes_are(prefix + ".down_proj.weight_scale_inv", &weights->w2_scale[expert * 2], 8);
  }
  EXPECT_THAT(weights->notes, testing::Contains(testing::HasSubstr("w13 is gate_proj rows, then up_proj rows")));
  EXPECT_THAT(weights->notes, testing::Contains(testing::HasSubstr("48 scale tensors stored in one dimension")));
}

TEST(MoeWeights, Bf16PackingIsNoted) {
  const auto weights = load_moe_layer(kFixtures + "deepseek_v3", 1);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_THAT(weights->notes, testing::Contains(testing::HasSubstr("48 BF16 weight tensors packed to E4M3 here")));
}

TEST(MoeWeights, APartHoldsTheSameBytesAsTheWhole) {
  for (const std::string fixture : {"deepseek_v3", "deepseek_v3_fp8"}) {
    const auto whole = load_moe_layer(kFixtures + fixture, 1);
    const auto part = load_moe_layer(kFixtures + fixture, 1, 5, 9);
    ASSERT_TRUE(whole.ok() && part.ok()) << part.status().message();
    EXPECT_EQ(part->expert_begin, 5u);
    EXPECT_EQ(part->num_local_experts(), 4u);
    ASSERT_EQ(part->w13.size(), 4u * 2 * 128 * 256);
    EXPECT_EQ(std::memcmp(part->w13.data(), &whole->w13[5 * 2 * 128 * 256], part->w13.size_bytes()), 0);
    EXPECT_EQ(std::memcmp(part->w2.data(), &whole->w2[5 * 256 * 128], part->w2.size_bytes()), 0);
    EXPECT_EQ(std::memcmp(part->w13_scale.data(), &whole->w13_scale[5 * 4], part->w13_scale.size_bytes()), 0);
    EXPECT_EQ(std::memcmp(part->w2_scale.data(), &whole->w2_scale[5 * 2], part->w2_scale.size_bytes()), 0);
  }
}

TEST(MoeWeights, TheRangeMustBeInsideTheLayer) {
  const std::string folder = kFixtures + "deepseek_v3_fp8";
  for (const auto& [begin, end] :
       std::vector<std::pair<uint32_t, uint32_t>>{{0, 17}, {4, 4}, {5, 4}, {16, 17}, {0, UINT32_MAX}}) {
    expect_error(load_moe_layer(folder, 1, begin, end).status(), Code::kInvalidArgument, {"inside [0, 16)"});
  }
}

TEST(MoeWeights, ALayerWithoutExpertsNamesThoseThatHaveThem) {
  expect_error(load_moe_layer(kFixtures + "deepseek_v3_fp8", 0).status(), Code::kBadFile,
               {"layer 0 must have experts", "only layer 1 has experts"});
  expect_error(load_moe_layer(kFixtures + "deepseek_v3_fp8", 7).status(), Code::kBadFile, {"layer 7", "only layer 1"});
}

}  // namespace
}  // namespace megamoe::io
