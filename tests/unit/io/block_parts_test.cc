// Router and shared experts out of a checkpoint: values, cuts, and every way in which they can be refused.
#include <cmath>
#include <cstring>
#include <tuple>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "io/moe_checkpoint.h"
#include "io_test_util.h"

namespace megamoe::io {
namespace {

using test::TempDir;
using Shape = std::vector<uint64_t>;

constexpr uint64_t kHidden = 256;
const std::string kBlock = "model.layers.1.mlp.";

float value_at(uint64_t idx) { return (static_cast<float>(idx * 2654435761u % 61) - 30.0f) / 32.0f; }

StoredTensor bf16(Shape shape, uint64_t seed) {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  std::vector<uint16_t> bits;
  for (uint64_t idx = 0; idx < count; ++idx) bits.push_back(core::bf16_encode(value_at(idx + seed)));
  return stored(FileDType::kBFloat16, std::move(shape), bits);
}

StoredTensor fp8(Shape shape, uint64_t seed) {
  std::vector<uint8_t> codes(shape[0] * shape[1]);
  for (size_t idx = 0; idx < codes.size(); ++idx)
    codes[idx] = static_cast<uint8_t>((idx * 7 + idx / 100 + seed) % 0x7f);
  return stored(FileDType::kFloat8E4M3, std::move(shape), codes);
}

StoredTensor scales(Shape shape) {
  std::vector<float> values(shape[0] * shape[1]);
  for (size_t idx = 0; idx < values.size(); ++idx) values[idx] = std::ldexp(1.0f, static_cast<int>(idx % 5) - 2);
  return stored(FileDType::kFloat32, std::move(shape), values);
}

class BlockParts : public testing::Test {
 protected:
  /// Two routed experts of `intermediate`, a router with a bias, and whatever a test adds.
  void build(uint64_t intermediate) {
    intermediate_ = intermediate;
    tensors_.clear();
    for (const std::string expert : {"0", "1"}) {
      tensors_[kBlock + "experts." + expert + ".gate_proj.weight"] = bf16({intermediate, kHidden}, 1);
      tensors_[kBlock + "experts." + expert + ".up_proj.weight"] = bf16({intermediate, kHidden}, 2);
      tensors_[kBlock + "experts." + expert + ".down_proj.weight"] = bf16({kHidden, intermediate}, 3);
    }
    tensors_[kBlock + "gate.weight"] = bf16({2, kHidden}, 4);
    tensors_[kBlock + "gate.e_score_correction_bias"] = stored<float>(FileDType::kFloat32, {2}, {0.5f, -0.25f});
    keys_ = {{"model_type", "\"deepseek_v3\""},
             {"hidden_size", "256"},
             {"moe_intermediate_size", std::to_string(intermediate)},
             {"n_routed_experts", "2"},
             {"num_experts_per_tok", "1"},
             {"n_group", "1"},
             {"topk_group", "1"},
             {"norm_topk_prob", "true"},
             {"routed_scaling_factor", "2.5"}};
  }

  /// Shared experts of intermediate `size`, FP8 in blocks or BF16.
  void add_shared(uint64_t size, bool is_fp8, const std::string& stem = "shared_experts.") {
    const uint64_t blocks = (size + 127) / 128;
    for (const std::string projection : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = projection == "down_proj";
      const Shape shape = down ? Shape{kHidden, size} : Shape{size, kHidden};
      const std::string name = kBlock + stem + projection + ".weight";
      tensors_[name] = is_fp8 ? fp8(shape, projection.size()) : bf16(shape, projection.size());
      if (is_fp8) tensors_[name + "_scale_inv"] = scales(down ? Shape{2, blocks} : Shape{blocks, 2});
    }
    if (is_fp8) keys_["quantization_config"] = R"({"quant_method":"fp8","weight_block_size":[128,128]})";
  }

  Result<MoeCheckpoint> open() {
    std::string config;
    for (const auto& [key, value] : keys_) config += (config.empty() ? "{\"" : ",\"") + key + "\":" + value;
    dir_.write("config.json", config + "}");
    EXPECT_TRUE(write_tensors(dir_.path() + "/model.safetensors", tensors_).ok());
    return MoeCheckpoint::open(dir_.path());
  }

  Result<SharedExperts> load_shared() {
    const auto checkpoint = open();
    if (!checkpoint.ok()) return checkpoint.status();
    return checkpoint->load_shared_experts(1);
  }

  Result<RouterWeights> load_router() {
    const auto checkpoint = open();
    if (!checkpoint.ok()) return checkpoint.status();
    return checkpoint->load_router(1);
  }

  /// What the file says a weight is.
  double stored_value(const std::string& projection, uint64_t row, uint64_t col) const {
    const StoredTensor& tensor = tensors_.at(kBlock + "shared_experts." + projection + ".weight");
    const uint64_t idx = row * tensor.shape[1] + col;
    if (tensor.dtype == FileDType::kBFloat16) {
      uint16_t bits = 0;
      std::memcpy(&bits, tensor.data.data() + idx * 2, 2);
      return core::bf16_decode(bits);
    }
    const StoredTensor& scale = tensors_.at(kBlock + "shared_experts." + projection + ".weight_scale_inv");
    float factor = 0;
    std::memcpy(&factor, scale.data.data() + (row / 128 * scale.shape[1] + col / 128) * 4, 4);
    return double{core::e4m3_decode(static_cast<uint8_t>(tensor.data[idx]))} * factor;
  }

  /// Every weight of every piece against the file: `tolerance` of the block's largest number; zero beyond the end.
  void expect_pieces(const SharedExperts& shared, double tolerance) {
    const uint64_t row_blocks = (intermediate_ + 127) / 128;
    const uint64_t elements = intermediate_ * kHidden;
    for (uint64_t piece = 0; piece < shared.num_experts; ++piece) {
      for (uint64_t i = 0; i < intermediate_; ++i) {
        const uint64_t whole = piece * intermediate_ + i;
        for (uint64_t h = 0; h < kHidden; h += 3) {
          const auto w13 = [&](uint64_t half) {
            const uint64_t place = piece * 2 + half;
            return double{core::e4m3_decode(shared.w13[place * elements + i * kHidden + h])} *
                   shared.w13_scale[(place * row_blocks + i / 128) * 2 + h / 128];
          };
          const double w2 = double{core::e4m3_decode(shared.w2[piece * elements + h * intermediate_ + i])} *
                            shared.w2_scale[(piece * 2 + h / 128) * row_blocks + i / 128];
          const bool inside = whole < shared.intermediate;
          ASSERT_NEAR(w13(0), inside ? stored_value("gate_proj", whole, h) : 0, tolerance) << piece << " " << i;
          ASSERT_NEAR(w13(1), inside ? stored_value("up_proj", whole, h) : 0, tolerance) << piece << " " << i;
          ASSERT_NEAR(w2, inside ? stored_value("down_proj", h, whole) : 0, tolerance) << piece << " " << i;
        }
      }
    }
  }

  uint64_t intermediate_ = 0;
  StoredTensors tensors_;
  std::map<std::string, std::string> keys_;
  TempDir dir_;
};

TEST_F(BlockParts, TheRouterIsExactlyWhatTheFileHolds) {
  build(128);
  const auto router = load_router();
  ASSERT_TRUE(router.ok()) << router.status().message();
  ASSERT_EQ(router->gate.size(), 2 * kHidden);
  for (uint64_t idx = 0; idx < router->gate.size(); ++idx) {
    ASSERT_EQ(router->gate[idx], core::bf16_decode(core::bf16_encode(value_at(idx + 4))));
  }
  ASSERT_EQ(router->correction_bias.size(), 2u);
  EXPECT_EQ(router->correction_bias[0], 0.5f);
  EXPECT_EQ(router->correction_bias[1], -0.25f);
  EXPECT_EQ(router->config.scaling, 2.5f);
}

TEST_F(BlockParts, RouterTensorsMustBeThoseOfTheModel) {
  build(128);
  tensors_.erase(kBlock + "gate.e_score_correction_bias");
  expect_error(load_router().status(), Code::kBadFile, {"missing (1)", kBlock + "gate.e_score_correction_bias"});
  build(128);
  tensors_.erase(kBlock + "gate.weight");
  expect_error(load_router().status(), Code::kBadFile, {"missing (1)", kBlock + "gate.weight or " + kBlock + "router"});
  build(128);
  tensors_[kBlock + "gate.weight"].shape = {kHidden, 2};
  expect_error(load_router().status(), Code::kBadFile, {"gate.weight must be [2, 256]", "BF16 [256, 2]"});
  build(128);
  tensors_[kBlock + "gate.weight"] = fp8({2, kHidden}, 1);
  expect_error(load_router().status(), Code::kNotSupported, {"gate.weight must be F32, BF16 or F16"});
  build(128);
  keys_["model_type"] = "\"qwen3_moe\"";  // a model without a bias: one that is there would be ignored
  expect_error(load_router().status(), Code::kBadFile, {"unknown (1)", "e_score_correction_bias"});
  build(128);
  tensors_[kBlock + "gate.tid2eid"] = stored<int64_t>(FileDType::kInt64, {1}, {0});
  expect_error(load_router().status(), Code::kNotSupported, {"token id", kBlock + "gate.tid2eid", "topk_ids"});
  build(128);
  tensors_[kBlock + "gate.e_score_correction_bias"] = stored<float>(FileDType::kFloat32, {2}, {0.5f, NAN});
  expect_error(load_router().status(), Code::kBadFile, {"e_score_correction_bias", "finite", "index 1"});
}

TEST_F(BlockParts, Bf16SharedExpertsAreCutPaddedAndPacked) {
  for (const auto& [intermediate, size, pieces] : std::vector<std::tuple<uint64_t, uint64_t, uint32_t>>{
           {128, 128, 1}, {128, 256, 2}, {64, 160, 3}, {192, 64, 1}}) {
    build(intermediate);
    add_shared(size, false);
    keys_["model_type"] = "\"qwen2_moe\"";
    keys_["shared_expert_intermediate_size"] = std::to_string(size);
    StoredTensors renamed;
    for (auto& [name, tensor] : tensors_) {
      std::string copy = name;
      if (const size_t place = copy.find("shared_experts."); place != std::string::npos) copy.erase(place + 13, 1);
      renamed[copy] = tensor;
    }
    const StoredTensors kept = tensors_;
    tensors_ = renamed;
    tensors_[kBlock + "shared_expert_gate.weight"] = bf16({1, kHidden}, 9);
    const auto shared = load_shared();
    tensors_ = kept;
    ASSERT_TRUE(shared.ok()) << shared.status().message();
    EXPECT_EQ(shared->num_experts, pieces);
    EXPECT_EQ(shared->intermediate, size);
    EXPECT_TRUE(shared->packed_here);
    ASSERT_EQ(shared->gate.size(), kHidden);
    EXPECT_EQ(shared->gate[3], core::bf16_decode(core::bf16_encode(value_at(12))));
    expect_pieces(shared.value(), 0.034);  // half a step of E4M3 below 1
  }
}

TEST_F(BlockParts, Fp8IsTakenAsItIsWhereCutsLieBetweenBlocks) {
  for (const auto& [intermediate, pieces] : std::vector<std::pair<uint64_t, uint64_t>>{{128, 3}, {256, 2}, {192, 1}}) {
    build(intermediate);
    add_shared(intermediate * pieces, true);
    keys_["n_shared_experts"] = std::to_string(pieces);
    const auto shared = load_shared();
    ASSERT_TRUE(shared.ok()) << shared.status().message();
    EXPECT_EQ(shared->num_experts, pieces);
    EXPECT_FALSE(shared->packed_here);
    EXPECT_TRUE(shared->gate.empty());
    expect_pieces(shared.value(), 0);
  }
}

TEST_F(BlockParts, Fp8IsPackedAgainWhereCutsLieInsideBlocks) {
  build(192);
  add_shared(384, true);
  keys_["n_shared_experts"] = "2";
  const auto shared = load_shared();
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  EXPECT_EQ(shared->num_experts, 2u);
  EXPECT_TRUE(shared->packed_here);
  EXPECT_THAT(shared->notes, testing::Contains(testing::HasSubstr("packed to E4M3 again")));
  expect_pieces(shared.value(), 448 * 4.0 / 16 * 0.51);  // half a step at the largest number
}

TEST_F(BlockParts, NoSharedExpertsAreNone) {
  build(128);
  auto shared = load_shared();
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  EXPECT_EQ(shared->num_experts, 0u);
  keys_["n_shared_experts"] = "0";
  shared = load_shared();
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  EXPECT_EQ(shared->num_experts, 0u);
}

TEST_F(BlockParts, SharedExpertsMustBeThoseOfTheConfiguration) {
  build(128);
  add_shared(128, false);
  expect_error(load_shared().status(), Code::kBadFile, {"n_shared_experts must be given"});
  keys_["n_shared_experts"] = "2";
  expect_error(load_shared().status(), Code::kBadFile, {"gate_proj.weight must be [256, 256]", "BF16 [128, 256]"});
  keys_["n_shared_experts"] = "1";
  tensors_[kBlock + "shared_experts.up_proj.bias"] = bf16({128}, 1);
  expect_error(load_shared().status(), Code::kBadFile, {"unknown (1)", "shared_experts.up_proj.bias"});
  build(128);
  keys_["n_shared_experts"] = "1";
  expect_error(load_shared().status(), Code::kBadFile, {"missing (3)", "shared_experts.gate_proj.weight"});
  build(128);
  add_shared(128, false);
  keys_["n_shared_experts"] = "1";
  tensors_[kBlock + "shared_expert_gate.weight"] = bf16({1, kHidden}, 1);
  expect_error(load_shared().status(), Code::kBadFile, {"unknown (1)", "shared_expert_gate.weight"});
  build(128);
  add_shared(128, false, "shared_expert.");
  expect_error(load_shared().status(), Code::kBadFile, {"shared_expert_intermediate_size must be given"});
  keys_["shared_expert_intermediate_size"] = "128";
  expect_error(load_shared().status(), Code::kBadFile, {"missing (1)", "shared_expert_gate.weight"});
  build(128);
  add_shared(128, true);
  keys_["n_shared_experts"] = "1";
  tensors_.erase(kBlock + "shared_experts.up_proj.weight_scale_inv");
  expect_error(load_shared().status(), Code::kBadFile, {"missing (1)", "up_proj.weight_scale_inv"});
}

TEST_F(BlockParts, ADescriptionSaysWhatWouldBeDone) {
  build(128);
  add_shared(256, true);
  keys_["n_shared_experts"] = "2";
  const auto checkpoint = open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->layers(), std::vector<uint32_t>{1});
  const LayerDescription layer = checkpoint->describe(1);
  EXPECT_TRUE(layer.experts_status.ok() && layer.router_status.ok() && layer.shared_status.ok());
  EXPECT_EQ(layer.family, "DeepSeek-V3");
  EXPECT_EQ(layer.weight, kBlock + "experts.0.gate_proj.weight BF16 [128, 256]");
  EXPECT_EQ(layer.format, "BF16");
  EXPECT_THAT(layer.router, testing::HasSubstr("sigmoid + correction bias, top-1, renormalised, x 2.5; " + kBlock));
  EXPECT_THAT(layer.shared, testing::HasSubstr("intermediate 256 as 2 of 128; " + kBlock + "shared_experts.gate_proj"));
  EXPECT_FALSE(checkpoint->describe(0).experts_status.ok());
}

}  // namespace
}  // namespace megamoe::io
