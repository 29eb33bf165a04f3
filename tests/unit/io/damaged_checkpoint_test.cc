// Checkpoints that are damaged in one way each: what is wrong is said by name, and nothing is loaded.
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "io/moe_weights.h"
#include "io_test_util.h"

namespace megamoe::io {
namespace {

using test::TempDir;

/// Four shards of an FP8 model with 8 experts, hidden 256 and a chosen intermediate; a test damages it, then writes it.
class DamagedCheckpoint : public testing::Test {
 protected:
  static constexpr uint64_t kHidden = 256;
  static constexpr uint32_t kNumExperts = 8;

  void SetUp() override { build(256); }

  static std::string name(uint32_t expert, const std::string& rest) {
    return "model.layers.3.mlp.experts." + std::to_string(expert) + "." + rest;
  }

  void build(uint64_t intermediate) {
    intermediate_ = intermediate;
    const uint64_t blocks = (intermediate + 127) / 128;
    for (std::map<std::string, StoredTensor>& shard : shards_) shard.clear();
    for (uint32_t expert = 0; expert < kNumExperts; ++expert) {
      for (const std::string projection : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = projection == "down_proj";
        std::vector<uint8_t> codes(intermediate * kHidden);
        for (size_t idx = 0; idx < codes.size(); ++idx) codes[idx] = static_cast<uint8_t>((idx * 7 + expert) % 0x7f);
        std::vector<float> scales(blocks * 2);
        for (size_t idx = 0; idx < scales.size(); ++idx)
          scales[idx] = 0.25f * static_cast<float>(idx + 1 + 10 * expert);
        at(name(expert, projection + ".weight")) =
            stored(FileDType::kFloat8E4M3, down ? Shape{kHidden, intermediate} : Shape{intermediate, kHidden}, codes);
        at(name(expert, projection + ".weight_scale_inv")) =
            stored(FileDType::kFloat32, down ? Shape{2, blocks} : Shape{blocks, 2}, scales);
      }
    }
    set_config(R"("quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]},)");
  }

  void set_config(const std::string& quantization) {
    config_ = R"({"model_type":"deepseek_v3","hidden_size":256,"moe_intermediate_size":)" +
              std::to_string(intermediate_) + R"(,"n_routed_experts":8,)" + quantization +
              R"("num_experts_per_tok":2})";
  }

  /// Two experts a shard.
  StoredTensor& at(const std::string& tensor_name) {
    const uint32_t expert = static_cast<uint32_t>(std::stoi(tensor_name.substr(27)));
    return shards_[std::min(expert / 2, 3u)][tensor_name];
  }

  void rename(const std::string& from, const std::string& to) {
    for (StoredTensors& shard : shards_) {
      for (auto it = shard.begin(); it != shard.end();) {
        const size_t place = it->first.find(from);
        if (place == std::string::npos) {
          ++it;
          continue;
        }
        std::string renamed = it->first;
        renamed.replace(place, from.size(), to);
        StoredTensor tensor = std::move(it->second);
        it = shard.erase(it);
        shard[renamed] = std::move(tensor);
      }
    }
  }

  void remove(const std::string& tensor_name) {
    for (StoredTensors& shard : shards_) shard.erase(tensor_name);
  }

  static std::string shard_name(size_t idx) { return "model-0000" + std::to_string(idx + 1) + "-of-00004.safetensors"; }

  void write(const std::map<std::string, std::string>& more_index = {}) {
    dir_.write("config.json", config_);
    std::map<std::string, std::string> weight_map;
    for (size_t idx = 0; idx < shards_.size(); ++idx) {
      ASSERT_TRUE(write_tensors(dir_.file(shard_name(idx)), shards_[idx]).ok());
      for (const auto& entry : shards_[idx]) weight_map.emplace(entry.first, shard_name(idx));
    }
    for (const auto& [tensor_name, shard] : more_index) weight_map[tensor_name] = shard;
    std::string text = R"({"weight_map":{)";
    for (const auto& [tensor_name, shard] : weight_map) {
      text += (text.back() == '{' ? "\"" : ",\"") + tensor_name + "\":\"" + shard + "\"";
    }
    dir_.write("model.safetensors.index.json", text + "}}");
  }

  Result<LayerWeights> load() { return load_moe_layer(dir_.path(), 3); }

  Status write_and_load() {
    write();
    return load().status();
  }

  using Shape = std::vector<uint64_t>;
  TempDir dir_;
  std::string config_;
  uint64_t intermediate_ = 0;
  std::array<StoredTensors, 4> shards_;
};

TEST_F(DamagedCheckpoint, LoadsWhole) {
  write();
  const auto weights = load();
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->w13[0], 0u);
  EXPECT_EQ(weights->w13[(5 * 2 + 1) * 256 * 256 + 3], (3 * 7 + 5) % 0x7f);
  EXPECT_EQ(weights->w2_scale[5 * 4 + 2], 0.25f * 53);
}

TEST_F(DamagedCheckpoint, IntermediateThatIsHalfABlockMoreKeepsGateAndUpGridsApart) {
  build(192);
  write();
  const auto weights = load();
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  ASSERT_EQ(weights->w13_scale.size(), 8u * 2 * 2 * 2);
  ASSERT_EQ(weights->w2_scale.size(), 8u * 2 * 2);
  ASSERT_EQ(weights->w13.size(), 8u * 2 * 192 * 256);
  EXPECT_EQ(weights->w13_scale[(1 * 2 + 0) * 4 + 3], 0.25f * 14);
  EXPECT_EQ(weights->w13_scale[(1 * 2 + 1) * 4 + 0], 0.25f * 11);
  EXPECT_EQ(weights->w13[(1 * 2 + 1) * 192 * 256 + 2], (2 * 7 + 1) % 0x7f);
}

TEST_F(DamagedCheckpoint, MissingShard) {
  write();
  std::filesystem::remove(dir_.file(shard_name(2)));
  expect_error(load().status(), Code::kBadFile, {"1 of 4 are missing", "model-00003-of-00004.safetensors"});
}

TEST_F(DamagedCheckpoint, TruncatedShard) {
  write();
  std::filesystem::resize_file(dir_.file(shard_name(1)), std::filesystem::file_size(dir_.file(shard_name(1))) - 4096);
  expect_error(load().status(), Code::kBadFile, {"model-00002-of-00004.safetensors", "4096 bytes are missing"});
}

TEST_F(DamagedCheckpoint, DroppedScale) {
  remove(name(5, "down_proj.weight_scale_inv"));
  expect_error(write_and_load(), Code::kBadFile, {"missing (1)", name(5, "down_proj.weight_scale_inv")});
  // Even where another expert is asked for: no rank starts on a checkpoint that another refuses.
  expect_error(load_moe_layer(dir_.path(), 3, 0, 1).status(), Code::kBadFile, {name(5, "down_proj.weight_scale_inv")});
}

TEST_F(DamagedCheckpoint, DroppedWeightsAreAllListed) {
  remove(name(0, "up_proj.weight"));
  remove(name(7, "gate_proj.weight"));
  remove(name(7, "gate_proj.weight_scale_inv"));
  expect_error(write_and_load(), Code::kBadFile,
               {"missing (2)", name(0, "up_proj.weight"), name(7, "gate_proj.weight")});
}

TEST_F(DamagedCheckpoint, RenamedExperts) {
  rename("mlp.experts.", "mlp.expert_bank.");
  expect_error(write_and_load(), Code::kBadFile,
               {"layer 3", "known name such as model.layers.3.mlp.experts.0.gate_proj.weight", "mlp.expert_bank.0."});
}

TEST_F(DamagedCheckpoint, RenamedProjections) {
  rename(".gate_proj.", ".gate.");
  expect_error(write_and_load(), Code::kBadFile, {"missing (8)", "unknown (16)", name(0, "gate.weight"), "and 8 more"});
}

TEST_F(DamagedCheckpoint, ScalesUnderAnotherName) {
  rename(".weight_scale_inv", ".scale");
  expect_error(write_and_load(), Code::kBadFile, {"missing (24)", "unknown (24)", name(0, "down_proj.scale")});
}

TEST_F(DamagedCheckpoint, ABiasIsNotDropped) {
  at(name(2, "gate_proj.bias")) = stored(FileDType::kFloat32, {256}, std::vector<float>(256));
  expect_error(write_and_load(), Code::kBadFile, {"unknown (1)", name(2, "gate_proj.bias")});
}

TEST_F(DamagedCheckpoint, AnExpertNumberIsWrittenInOneWay) {
  at(name(2, "gate_proj.weight"));
  shards_[1]["model.layers.3.mlp.experts.02.gate_proj.weight"] = at(name(2, "gate_proj.weight"));
  expect_error(write_and_load(), Code::kBadFile, {"unknown (1)", "experts.02.gate_proj.weight"});
}

TEST_F(DamagedCheckpoint, ExpertBeyondTheConfiguration) {
  at(name(8, "gate_proj.weight")) = at(name(7, "gate_proj.weight"));
  expect_error(write_and_load(), Code::kBadFile,
               {"does not count (1)", name(8, "gate_proj.weight"), "exactly 8 experts"});
}

TEST_F(DamagedCheckpoint, TensorInTwoShards) {
  shards_[3][name(0, "gate_proj.weight")] = at(name(0, "gate_proj.weight"));
  expect_error(write_and_load(), Code::kBadFile, {name(0, "gate_proj.weight"), "in two", shard_name(0), shard_name(3)});
}

TEST_F(DamagedCheckpoint, IndexNamesAShardThatNeverWas) {
  write({{"model.norm.weight", "model-00005-of-00004.safetensors"}});
  expect_error(load().status(), Code::kBadFile, {"1 of 5 are missing", "model-00005-of-00004.safetensors"});
}

TEST_F(DamagedCheckpoint, StaleIndex) {
  write({{name(0, "gate_proj.weight"), shard_name(3)}});
  expect_error(load().status(), Code::kBadFile, {"stale", name(0, "gate_proj.weight"), shard_name(3)});
}

TEST_F(DamagedCheckpoint, ANamingHasItsOwnProjections) {
  rename("mlp.experts.", "block_sparse_moe.experts.");
  expect_error(write_and_load(), Code::kBadFile, {"known name", "found model.layers.3.block_sparse_moe.experts.0."});
}

TEST_F(DamagedCheckpoint, OtherQuantisationsAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> schemes = {{"weight_packed", "compressed-tensors"},
                                                                    {"qweight", "GPTQ or AWQ"},
                                                                    {"weight_scale_2", "NVFP4"},
                                                                    {"weight_scale", "one scale for a row"},
                                                                    {"absmax", "bitsandbytes"}};
  for (const auto& [ending, scheme] : schemes) {
    build(256);
    at(name(2, "up_proj." + ending)) = stored(FileDType::kInt32, {1}, std::vector<int32_t>(1));
    expect_error(write_and_load(), Code::kNotSupported, {scheme, name(2, "up_proj." + ending), "convert"});
  }
}

TEST_F(DamagedCheckpoint, TwoNamingsAtOnceAreRefused) {
  shards_[0]["model.layers.3.block_sparse_moe.experts.0.w1.weight"] = at(name(0, "gate_proj.weight"));
  expect_error(write_and_load(), Code::kBadFile, {"in one way", "DeepSeek-V3 and Mixtral"});
}

TEST_F(DamagedCheckpoint, WhatIsWrongWithTensorsOverAllExpertsIsSaidOnce) {
  for (StoredTensors& shard : shards_) shard.clear();
  shards_[0]["model.layers.3.mlp.experts.gate_up_proj"] = stored(FileDType::kBFloat16, {1}, std::vector<uint16_t>(1));
  expect_error(write_and_load(), Code::kBadFile,
               {"missing (1): model.layers.3.mlp.experts.down_proj",
                "(1): model.layers.3.mlp.experts.gate_up_proj must be [8, 512, 256] by config.json, is BF16 [1]"});
}

TEST_F(DamagedCheckpoint, ShapesMustBeThoseOfTheConfiguration) {
  at(name(4, "gate_proj.weight")).shape = {128, 512};
  expect_error(write_and_load(), Code::kBadFile,
               {name(4, "gate_proj.weight"), "must be [256, 256]", "F8_E4M3 [128, 512]"});
}

TEST_F(DamagedCheckpoint, SqueezedScalesAreAcceptedByCount) {
  build(128);
  for (uint32_t expert = 0; expert < kNumExperts; ++expert) {
    for (const std::string projection : {"gate_proj", "up_proj", "down_proj"}) {
      at(name(expert, projection + ".weight_scale_inv")).shape = {2};
    }
  }
  EXPECT_TRUE(write_and_load().ok()) << load().status().message();
  at(name(3, "up_proj.weight_scale_inv")) = stored(FileDType::kFloat32, {3}, std::vector<float>(3, 1.0f));
  expect_error(write_and_load(), Code::kBadFile, {name(3, "up_proj.weight_scale_inv"), "must be [1, 2]", "F32 [3]"});
}

TEST_F(DamagedCheckpoint, TransposedScaleGridIsRefused) {
  build(384);
  at(name(3, "up_proj.weight_scale_inv")).shape = {2, 3};
  expect_error(write_and_load(), Code::kBadFile, {name(3, "up_proj.weight_scale_inv"), "must be [3, 2]", "F32 [2, 3]"});
}

TEST_F(DamagedCheckpoint, Fp8NeedsToKnowItsBlocks) {
  set_config("");
  expect_error(write_and_load(), Code::kBadFile, {"needs quantization_config"});
}

TEST_F(DamagedCheckpoint, OtherTypesAreRefusedByName) {
  at(name(6, "up_proj.weight")).dtype = FileDType::kFloat8E5M2;
  at(name(6, "down_proj.weight_scale_inv")).dtype = FileDType::kInt32;
  expect_error(write_and_load(), Code::kNotSupported,
               {name(6, "up_proj.weight") + " must be F8_E4M3, MXFP4, BF16, F16 or F32, is F8_E5M2 [256, 256]",
                name(6, "down_proj.weight_scale_inv") + " must be F32, BF16 or F8_E8M0, is I32 [2, 2]"});
}

TEST_F(DamagedCheckpoint, Bf16WeightsMustHaveNoScale) {
  at(name(1, "up_proj.weight")) = stored(FileDType::kBFloat16, {256, 256}, std::vector<uint16_t>(256 * 256, 0x3f80));
  expect_error(write_and_load(), Code::kBadFile, {name(1, "up_proj.weight"), "must have no scale"});
}

TEST_F(DamagedCheckpoint, Bf16AndF32WeightsAmongFp8ArePacked) {
  at(name(1, "up_proj.weight")) = stored(FileDType::kBFloat16, {256, 256}, std::vector<uint16_t>(256 * 256, 0x3f80));
  at(name(1, "down_proj.weight")) = stored(FileDType::kFloat32, {256, 256}, std::vector<float>(256 * 256, -2.0f));
  remove(name(1, "up_proj.weight_scale_inv"));
  remove(name(1, "down_proj.weight_scale_inv"));
  write();
  const auto weights = load();
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->w13[(1 * 2 + 1) * 256 * 256], 0x7e);
  EXPECT_EQ(weights->w13_scale[(1 * 2 + 1) * 4], 1.0f / 448.0f);
  EXPECT_EQ(weights->w2[1 * 256 * 256], 0xfe);
  EXPECT_EQ(weights->w2_scale[1 * 4 + 3], 2.0f / 448.0f);
  EXPECT_THAT(weights->notes, testing::Contains(testing::HasSubstr("1 BF16 weight tensors packed")));
  EXPECT_THAT(weights->notes, testing::Contains(testing::HasSubstr("1 F32 weight tensors packed")));
}

TEST_F(DamagedCheckpoint, Bf16AndE8m0ScalesAreConvertedExactly) {
  at(name(2, "gate_proj.weight_scale_inv")) =
      stored<uint16_t>(FileDType::kBFloat16, {2, 2}, {0x3f80, 0x3e00, 0x4049, 0x0001});
  at(name(2, "down_proj.weight_scale_inv")) = stored<uint8_t>(FileDType::kFloat8E8M0, {2, 2}, {127, 120, 0, 254});
  write();
  const auto weights = load();
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const std::vector<float> gate(&weights->w13_scale[2 * 8], &weights->w13_scale[2 * 8] + 4);
  EXPECT_EQ(gate, (std::vector<float>{1.0f, 0.125f, 3.140625f, std::ldexp(1.0f, -133)}));
  const std::vector<float> down(&weights->w2_scale[2 * 4], &weights->w2_scale[2 * 4] + 4);
  EXPECT_EQ(down, (std::vector<float>{1.0f, 0.0078125f, std::ldexp(1.0f, -127), std::ldexp(1.0f, 127)}));
  EXPECT_THAT(weights->notes, testing::Contains(testing::HasSubstr("2 scale tensors converted")));
}

TEST_F(DamagedCheckpoint, NanWeightsAreRefusedByNameAndIndex) {
  for (const char code : {'\x7f', '\xff'}) {
    build(256);
    at(name(6, "down_proj.weight")).data[200 * 256 + 17] = code;
    expect_error(write_and_load(), Code::kBadFile, {name(6, "down_proj.weight"), "NaN", "row 200, column 17"});
  }
  // Experts that are not asked for are not read.
  EXPECT_TRUE(load_moe_layer(dir_.path(), 3, 0, 6).ok());
}

TEST_F(DamagedCheckpoint, ScalesThatAreNoNumbersAreRefusedByNameAndIndex) {
  const std::string scale_name = name(6, "up_proj.weight_scale_inv");
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -1.0f}) {
    at(scale_name) = stored<float>(FileDType::kFloat32, {2, 2}, {1, 1, 1, bad});
    expect_error(write_and_load(), Code::kBadFile, {scale_name, "finite", "index 3"});
  }
  at(scale_name) = stored<uint16_t>(FileDType::kBFloat16, {2, 2}, {0x3f80, 0x7f80, 0x3f80, 0x3f80});
  expect_error(write_and_load(), Code::kBadFile, {scale_name, "inf at index 1"});
  at(scale_name) = stored<uint8_t>(FileDType::kFloat8E8M0, {2, 2}, {127, 127, 255, 127});
  expect_error(write_and_load(), Code::kBadFile, {scale_name, "nan at index 2"});
}

TEST_F(DamagedCheckpoint, Bf16WeightsThatAreNoNumbersAreRefused) {
  std::vector<uint16_t> weights(256 * 256, 0x3f80);
  weights[256 * 130 + 5] = 0xff80;
  at(name(1, "up_proj.weight")) = stored(FileDType::kBFloat16, {256, 256}, weights);
  remove(name(1, "up_proj.weight_scale_inv"));
  expect_error(write_and_load(), Code::kBadFile, {name(1, "up_proj.weight"), "-inf at row 130, column 5"});
}

}  // namespace
}  // namespace megamoe::io
