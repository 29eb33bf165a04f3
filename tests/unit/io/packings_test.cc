// One layer under every naming and packing: whatever a file calls its tensors and however they lie, the same bytes come
// out; and each rank reads its own experts.
#include <array>
#include <cmath>
#include <cstring>

#include "core/formats/bf16.h"
#include "core/formats/e4m3.h"
#include "io/half.h"
#include "io/moe_weights.h"
#include "io_test_util.h"

namespace megamoe::io {
namespace {

using test::TempDir;

constexpr uint64_t kHidden = 256;
constexpr uint64_t kIntermediate = 128;
constexpr uint64_t kExperts = 4;
constexpr uint64_t kElements = kHidden * kIntermediate;
enum Which { kGate, kUp, kDown };

/// Small integers over 16, which BF16, F16, F32 and E4M3 all hold; every position of every matrix differs in pattern.
float value_of(uint64_t expert, int which, uint64_t idx) {
  const uint64_t mixed = (idx * 2654435761u + expert * 97 + static_cast<uint64_t>(which) * 31 + 7) % 31;
  return (static_cast<float>(mixed) - 15.0f) / 16.0f;
}

uint16_t to_half(float value) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (half_decode(static_cast<uint16_t>(bits)) == value) return static_cast<uint16_t>(bits);
  }
  return 0;
}

/// [rows][cols] in the order of the layer: gate and up [I][H], down [H][I].
std::vector<float> matrix(uint64_t expert, int which) {
  std::vector<float> values(kElements);
  for (uint64_t idx = 0; idx < kElements; ++idx) values[idx] = value_of(expert, which, idx);
  return values;
}

std::vector<float> transposed(const std::vector<float>& values, uint64_t rows, uint64_t cols) {
  std::vector<float> result(values.size());
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t col = 0; col < cols; ++col) result[col * rows + row] = values[row * cols + col];
  }
  return result;
}

StoredTensor as_bf16(std::vector<uint64_t> shape, const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(core::bf16_encode(value));
  return stored(FileDType::kBFloat16, std::move(shape), bits);
}

using Names = std::array<std::string, 3>;  // gate, up, down

StoredTensors per_expert(const std::string& prefix, const Names& names) {
  StoredTensors tensors;
  for (uint64_t expert = 0; expert < kExperts; ++expert) {
    for (const int which : {kGate, kUp, kDown}) {
      const std::vector<uint64_t> shape = which == kDown ? std::vector<uint64_t>{kHidden, kIntermediate}
                                                         : std::vector<uint64_t>{kIntermediate, kHidden};
      tensors[prefix + std::to_string(expert) + "." + names[static_cast<size_t>(which)] + ".weight"] =
          as_bf16(shape, matrix(expert, which));
    }
  }
  return tensors;
}

StoredTensors all_experts(const std::string& prefix, bool is_transposed) {
  std::vector<float> gate_up;
  std::vector<float> down;
  for (uint64_t expert = 0; expert < kExperts; ++expert) {
    std::vector<float> both = matrix(expert, kGate);
    const std::vector<float> up = matrix(expert, kUp);
    both.insert(both.end(), up.begin(), up.end());
    std::vector<float> last = matrix(expert, kDown);
    if (is_transposed) {
      both = transposed(both, 2 * kIntermediate, kHidden);
      last = transposed(last, kHidden, kIntermediate);
    }
    gate_up.insert(gate_up.end(), both.begin(), both.end());
    down.insert(down.end(), last.begin(), last.end());
  }
  using Shape = std::vector<uint64_t>;
  return {{prefix + "gate_up_proj", as_bf16(is_transposed ? Shape{kExperts, kHidden, 2 * kIntermediate}
                                                          : Shape{kExperts, 2 * kIntermediate, kHidden},
                                            gate_up)},
          {prefix + "down_proj",
           as_bf16(is_transposed ? Shape{kExperts, kIntermediate, kHidden} : Shape{kExperts, kHidden, kIntermediate},
                   down)}};
}

class Packings : public testing::Test {
 protected:
  Result<LayerWeights> load(const StoredTensors& tensors, const std::string& model_type = "deepseek_v3",
                            const std::string& more_config = "", uint32_t begin = 0, uint32_t end = kExperts) {
    const std::string width = model_type.starts_with("llama4") ? "intermediate_size" : "moe_intermediate_size";
    dir_.write("config.json", R"({"model_type":")" + model_type + R"(","hidden_size":256,")" + width +
                                  R"(":128,"num_experts":4,)" + more_config + R"("num_experts_per_tok":1})");
    EXPECT_TRUE(write_tensors(dir_.path() + "/model.safetensors", tensors).ok());
    return load_moe_layer(dir_.path(), 3, begin, end);
  }

  /// The layer of DeepSeek-V3's names.
  const LayerWeights& plain() {
    if (plain_.w13.empty()) {
      auto loaded = load(per_expert("model.layers.3.mlp.experts.", {"gate_proj", "up_proj", "down_proj"}));
      EXPECT_TRUE(loaded.ok()) << loaded.status().message();
      plain_ = std::move(loaded).value();
    }
    return plain_;
  }

  void expect_plain(const Result<LayerWeights>& loaded, const std::string& order) {
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_THAT(loaded->notes, testing::Contains(testing::HasSubstr(order)));
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
    };
    EXPECT_TRUE(same(loaded->w13, plain().w13));
    EXPECT_TRUE(same(loaded->w2, plain().w2));
    EXPECT_TRUE(same(loaded->w13_scale, plain().w13_scale));
    EXPECT_TRUE(same(loaded->w2_scale, plain().w2_scale));
  }

  TempDir dir_;
  LayerWeights plain_;
};

TEST_F(Packings, ThePlainLayerHoldsTheValues) {
  const LayerWeights& weights = plain();
  for (uint64_t expert = 0; expert < kExperts; ++expert) {
    for (uint64_t idx = 0; idx < kElements; idx += 37) {
      const float up = core::e4m3_decode(weights.w13[(expert * 2 + 1) * kElements + idx]) *
                       weights.w13_scale[(expert * 2 + 1) * 2 + idx % kHidden / 128];
      EXPECT_NEAR(up, value_of(expert, kUp, idx), 0.035f);
    }
  }
  EXPECT_TRUE(weights.packed_here);
}

TEST_F(Packings, EveryNamingGivesTheSameBytes) {
  const Names short_names = {"w1", "w3", "w2"};
  expect_plain(load(per_expert("model.layers.3.block_sparse_moe.experts.", short_names), "minimax_m2x"),
               "Mixtral names: w13 is w1 rows, then w3 rows; w2 is w2");
  for (const std::string prefix : {"layers.3.ffn.experts.", "model.layers.3.ffn.experts."}) {
    expect_plain(load(per_expert(prefix, short_names), "deepseek_v4"),
                 "DeepSeek-V4 names: w13 is w1 rows, then w3 rows; w2 is w2");
  }
  for (const std::string prefix : {"model.language_model.layers.3.", "language_model.model.layers.3."}) {
    expect_plain(load(per_expert(prefix + "mlp.experts.", {"gate_proj", "up_proj", "down_proj"})),
                 "w13 is gate_proj rows, then up_proj rows");
    expect_plain(load(all_experts(prefix + "mlp.experts.", false), "qwen3_5_moe_text"), "gate rows, then up rows");
  }
  expect_plain(load(all_experts("model.layers.3.mlp.experts.", false), "qwen3_5_moe_text"),
               "transformers v5 names: w13 is gate_up_proj, gate rows, then up rows; w2 is down_proj");
  expect_plain(load(all_experts("model.language_model.layers.3.mlp.experts.", true), "qwen3_vl_moe_text"),
               "Qwen3-VL names: w13 is gate_up_proj transposed, gate columns, then up columns");
  expect_plain(load(all_experts("language_model.model.layers.3.feed_forward.experts.", true), "llama4_text"),
               "Llama-4 names: w13 is gate_up_proj transposed, gate columns, then up columns");
}

TEST_F(Packings, TheModelSaysWhetherTensorsAreTransposed) {
  // 2I equals H here, so that shapes cannot tell the two orders of the first tensor apart; those of the second can.
  expect_error(load(all_experts("model.layers.3.mlp.experts.", true), "qwen3_5_moe_text").status(), Code::kBadFile,
               {"down_proj must be [4, 256, 128]", "is BF16 [4, 128, 256]"});
  expect_error(load(all_experts("model.layers.3.mlp.experts.", false), "qwen3_vl_moe_text").status(), Code::kBadFile,
               {"down_proj must be [4, 128, 256]"});
}

TEST_F(Packings, APartOfATensorOverAllExpertsIsThatPart) {
  for (const bool is_transposed : {false, true}) {
    const auto part =
        load(all_experts(is_transposed ? "model.layers.3.feed_forward.experts." : "model.layers.3.mlp.experts.",
                         is_transposed),
             is_transposed ? "llama4_text" : "qwen3_5_moe_text", "", 1, 3);
    ASSERT_TRUE(part.ok()) << part.status().message();
    ASSERT_EQ(part->w13.size(), 2 * 2 * kElements);
    EXPECT_EQ(std::memcmp(part->w13.data(), plain().w13.data() + 2 * kElements, part->w13.size_bytes()), 0);
    EXPECT_EQ(std::memcmp(part->w2.data(), plain().w2.data() + kElements, part->w2.size_bytes()), 0);
  }
}

TEST_F(Packings, HalfAndFloatWeightsGiveTheSameBytes) {
  StoredTensors tensors = per_expert("model.layers.3.mlp.experts.", {"gate_proj", "up_proj", "down_proj"});
  const std::string prefix = "model.layers.3.mlp.experts.2.";
  std::vector<uint16_t> halves;
  for (const float value : matrix(2, kUp)) halves.push_back(to_half(value));
  tensors[prefix + "up_proj.weight"] = stored(FileDType::kFloat16, {kIntermediate, kHidden}, halves);
  tensors[prefix + "down_proj.weight"] = stored(FileDType::kFloat32, {kHidden, kIntermediate}, matrix(2, kDown));
  const auto loaded = load(tensors);
  expect_plain(loaded, "1 F16 weight tensors packed to E4M3 here");
  EXPECT_THAT(loaded->notes, testing::Contains(testing::HasSubstr("1 F32 weight tensors packed")));
}

TEST_F(Packings, Fp8OverAllExpertsKeepsItsCodesAndScales) {
  std::vector<uint8_t> gate_up(kExperts * 2 * kElements);
  std::vector<uint8_t> down(kExperts * kElements);
  for (size_t idx = 0; idx < gate_up.size(); ++idx) gate_up[idx] = static_cast<uint8_t>(idx * 7 % 0x7f);
  for (size_t idx = 0; idx < down.size(); ++idx) down[idx] = static_cast<uint8_t>(idx * 11 % 0x7f);
  std::vector<float> gate_up_scale(kExperts * 2 * 2);
  std::vector<float> down_scale(kExperts * 2);
  for (size_t idx = 0; idx < gate_up_scale.size(); ++idx) gate_up_scale[idx] = 0.5f + static_cast<float>(idx);
  for (size_t idx = 0; idx < down_scale.size(); ++idx) down_scale[idx] = 0.25f + static_cast<float>(idx);
  const std::string prefix = "model.layers.3.mlp.experts.";
  StoredTensors tensors = {
      {prefix + "gate_up_proj", stored(FileDType::kFloat8E4M3, {kExperts, 2 * kIntermediate, kHidden}, gate_up)},
      {prefix + "gate_up_proj_scale_inv", stored(FileDType::kFloat32, {kExperts, 2, 2}, gate_up_scale)},
      {prefix + "down_proj", stored(FileDType::kFloat8E4M3, {kExperts, kHidden, kIntermediate}, down)},
      {prefix + "down_proj_scale_inv", stored(FileDType::kFloat32, {kExperts, 2, 1}, down_scale)}};
  const std::string fp8 = R"("quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]},)";
  const auto loaded = load(tensors, "qwen3_5_moe_text", fp8, 1, 4);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_FALSE(loaded->packed_here);
  EXPECT_EQ(std::memcmp(loaded->w13.data(), gate_up.data() + 2 * kElements, loaded->w13.size_bytes()), 0);
  EXPECT_EQ(std::memcmp(loaded->w2.data(), down.data() + kElements, loaded->w2.size_bytes()), 0);
  EXPECT_EQ(std::memcmp(loaded->w13_scale.data(), gate_up_scale.data() + 4, loaded->w13_scale.size_bytes()), 0);
  EXPECT_EQ(std::memcmp(loaded->w2_scale.data(), down_scale.data() + 2, loaded->w2_scale.size_bytes()), 0);
  tensors[prefix + "gate_up_proj_scale_inv"].shape = {kExperts, 4, 1};
  expect_error(load(tensors, "qwen3_5_moe_text", fp8).status(), Code::kBadFile,
               {"gate_up_proj_scale_inv must be [4, 2, 2]"});
  tensors.erase(prefix + "gate_up_proj_scale_inv");
  expect_error(load(tensors, "qwen3_5_moe_text", fp8).status(), Code::kBadFile,
               {"missing (1): " + prefix + "gate_up_proj_scale_inv"});
}

/// MXFP4 in both packings; a weight of row r, column c of matrix (expert, which) has a code from its place.
class Mxfp4Packings : public Packings {
 protected:
  static uint8_t nibble(uint64_t expert, int which, uint64_t idx) {
    return static_cast<uint8_t>((idx * 5 + idx / 64 + expert * 3 + static_cast<uint64_t>(which)) % 16);
  }
  static uint8_t exponent(uint64_t expert, int which, uint64_t run) {
    return static_cast<uint8_t>(120 + (run + expert + static_cast<uint64_t>(which)) % 6);
  }
  static double value(uint64_t expert, int which, uint64_t idx) {
    constexpr std::array<double, 8> kMagnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const uint8_t code = nibble(expert, which, idx);
    const double magnitude = kMagnitudes[code & 7] * std::ldexp(1.0, exponent(expert, which, idx / 32) - 127);
    return (code & 8) != 0 ? -magnitude : magnitude;
  }

  static std::vector<uint8_t> packed(uint64_t expert, int which) {
    std::vector<uint8_t> bytes(kElements / 2);
    for (uint64_t pair = 0; pair < bytes.size(); ++pair) {
      bytes[pair] = static_cast<uint8_t>(nibble(expert, which, 2 * pair) | nibble(expert, which, 2 * pair + 1) << 4);
    }
    return bytes;
  }
  static std::vector<uint8_t> exponents(uint64_t expert, int which) {
    std::vector<uint8_t> bytes(kElements / 32);
    for (uint64_t run = 0; run < bytes.size(); ++run) bytes[run] = exponent(expert, which, run);
    return bytes;
  }

  static StoredTensors per_expert_mxfp4(FileDType weight_type, FileDType scale_type) {
    StoredTensors tensors;
    const Names names = {"w1", "w3", "w2"};
    for (uint64_t expert = 0; expert < kExperts; ++expert) {
      for (const int which : {kGate, kUp, kDown}) {
        const uint64_t rows = which == kDown ? kHidden : kIntermediate;
        const uint64_t cols = kElements / rows;
        const std::string stem =
            "layers.3.ffn.experts." + std::to_string(expert) + "." + names[static_cast<size_t>(which)];
        tensors[stem + ".weight"] = stored(weight_type, {rows, cols / 2}, packed(expert, which));
        tensors[stem + ".scale"] = stored(scale_type, {rows, cols / 32}, exponents(expert, which));
      }
    }
    return tensors;
  }

  /// Rows gate, up, gate, up, ...
  static StoredTensors blocks() {
    std::vector<uint8_t> gate_up, gate_up_scale, down, down_scale;
    const auto add_row = [](std::vector<uint8_t>& to, const std::vector<uint8_t>& from, uint64_t row, uint64_t bytes) {
      to.insert(to.end(), from.begin() + static_cast<ptrdiff_t>(row * bytes),
                from.begin() + static_cast<ptrdiff_t>((row + 1) * bytes));
    };
    for (uint64_t expert = 0; expert < kExperts; ++expert) {
      for (uint64_t row = 0; row < kIntermediate; ++row) {
        for (const int which : {kGate, kUp}) {
          add_row(gate_up, packed(expert, which), row, kHidden / 2);
          add_row(gate_up_scale, exponents(expert, which), row, kHidden / 32);
        }
      }
      add_row(down, packed(expert, kDown), 0, kElements / 2);
      add_row(down_scale, exponents(expert, kDown), 0, kElements / 32);
    }
    const std::string prefix = "model.layers.3.mlp.experts.";
    return {
        {prefix + "gate_up_proj_blocks",
         stored(FileDType::kUInt8, {kExperts, 2 * kIntermediate, kHidden / 32, 16}, gate_up)},
        {prefix + "gate_up_proj_scales",
         stored(FileDType::kUInt8, {kExperts, 2 * kIntermediate, kHidden / 32}, gate_up_scale)},
        {prefix + "down_proj_blocks", stored(FileDType::kUInt8, {kExperts, kHidden, kIntermediate / 32, 16}, down)},
        {prefix + "down_proj_scales", stored(FileDType::kUInt8, {kExperts, kHidden, kIntermediate / 32}, down_scale)}};
  }

  static void expect_values(const Result<LayerWeights>& loaded) {
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_FALSE(loaded->packed_here);
    for (uint64_t expert = loaded->expert_begin; expert < loaded->expert_end; ++expert) {
      const uint64_t local = expert - loaded->expert_begin;
      for (uint64_t idx = 0; idx < kElements; ++idx) {
        const auto w13 = [&](uint64_t half) {
          const uint64_t place = local * 2 + half;
          return double{core::e4m3_decode(loaded->w13[place * kElements + idx])} *
                 loaded->w13_scale[place * 2 + idx % kHidden / 128];
        };
        ASSERT_EQ(w13(0), value(expert, kGate, idx)) << "expert " << expert << ", element " << idx;
        ASSERT_EQ(w13(1), value(expert, kUp, idx)) << "expert " << expert << ", element " << idx;
        ASSERT_EQ(double{core::e4m3_decode(loaded->w2[local * kElements + idx])} *
                      loaded->w2_scale[local * 2 + idx / kIntermediate / 128],
                  value(expert, kDown, idx));
      }
    }
  }
};

TEST_F(Mxfp4Packings, ATensorPerExpertIsExact) {
  for (const FileDType type : {FileDType::kInt8, FileDType::kUInt8}) {
    const auto loaded = load(per_expert_mxfp4(type, FileDType::kFloat8E8M0), "deepseek_v4");
    expect_values(loaded);
    EXPECT_THAT(loaded->notes, testing::Contains(testing::HasSubstr("12 MXFP4 weight tensors expanded to E4M3")));
  }
  expect_values(
      load(per_expert_mxfp4(FileDType::kUInt8, FileDType::kUInt8), "deepseek_v4", R"("expert_dtype":"fp4",)"));
}

TEST_F(Mxfp4Packings, BlocksOverAllExpertsAreExactAndPutInOrder) {
  const std::string mxfp4 = R"("quantization_config":{"quant_method":"mxfp4"},)";
  expect_values(load(blocks(), "some_moe", mxfp4));
  expect_values(load(blocks(), "some_moe", mxfp4, 2, 3));
  StoredTensors tensors = blocks();
  tensors["model.layers.3.mlp.experts.gate_up_proj_bias"] =
      stored(FileDType::kBFloat16, {kExperts, 2 * kIntermediate}, std::vector<uint16_t>(kExperts * 2 * kIntermediate));
  expect_error(load(tensors, "some_moe", mxfp4).status(), Code::kBadFile, {"unknown (1)", "gate_up_proj_bias"});
}

TEST_F(Mxfp4Packings, FourBitWeightsThatAreNotMxfp4AreRefused) {
  expect_error(load(per_expert_mxfp4(FileDType::kInt8, FileDType::kUInt8), "deepseek_v4").status(), Code::kNotSupported,
               {"I8 [128, 128] with scale U8", "only as MXFP4"});
  expect_error(load(per_expert_mxfp4(FileDType::kInt8, FileDType::kFloat8E4M3), "deepseek_v4").status(),
               Code::kNotSupported, {"with scale F8_E4M3", "only as MXFP4"});
  StoredTensors tensors = per_expert_mxfp4(FileDType::kInt8, FileDType::kFloat8E8M0);
  tensors.erase("layers.3.ffn.experts.1.w3.scale");
  expect_error(load(tensors, "deepseek_v4").status(), Code::kNotSupported, {"experts.1.w3.weight", "no scale"});
  tensors = per_expert_mxfp4(FileDType::kInt8, FileDType::kFloat8E8M0);
  tensors["layers.3.ffn.experts.1.w3.scale"].shape = {64, 16};
  expect_error(load(tensors, "deepseek_v4").status(), Code::kBadFile,
               {"experts.1.w3.scale must be [128, 8] (32 columns share a scale)"});
  tensors = per_expert_mxfp4(FileDType::kInt8, FileDType::kFloat8E8M0);
  tensors["layers.3.ffn.experts.1.w3.scale"].data[9] = '\xff';
  expect_error(load(tensors, "deepseek_v4").status(), Code::kBadFile,
               {"experts.1.w3.scale", "NaN (0xff) at row 1, column 1"});
}

TEST(Half, EveryNumberIsExact) {
  for (uint32_t bits = 0; bits < 0x8000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const uint32_t fraction = bits & 0x3ff;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(half_decode(static_cast<uint16_t>(bits))), fraction != 0);
      EXPECT_EQ(std::isinf(half_decode(static_cast<uint16_t>(bits))), fraction == 0);
      continue;
    }
    const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0 + fraction, exponent - 25);
    ASSERT_EQ(half_decode(static_cast<uint16_t>(bits)), value);
    ASSERT_EQ(half_decode(static_cast<uint16_t>(bits | 0x8000)), -value);
  }
}

}  // namespace
}  // namespace megamoe::io
