// Tokens that come quantised, with the codes and scales this library would make: the same bits as from BF16.
#include <cstring>

#include "api/registry.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class Fp8Tokens : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, Fp8Tokens, ::testing::ValuesIn(backend_names()), backend_label);

TEST_P(Fp8Tokens, EqualBf16TokensBitForBit) {
  const MoeShape shape{384, 192, 8, 4};
  const int64_t hidden = shape.hidden, groups = hidden / 128;
  const TestWeights weights = gen_weights(shape, 33);
  const TestTokens all = gen_tokens(shape, 41, 8);
  for (const uint32_t ranks : {1u, 2u, 4u}) {
    LayerGroup group(config(shape, 64), ranks, weights);
    expect_all_ok(group.created());
    const std::vector<TestTokens> tokens = split_tokens(shape, all, ranks);
    const std::vector<RankOutput> right = group.forward(tokens);
    expect_matches_oracle(weights, std::nullopt, tokens, right);

    std::vector<QuantizedTokens> quantized;
    std::vector<std::vector<float>> group_major(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      quantized.push_back(quantize_tokens(shape, tokens[rank]));
      const auto t = static_cast<int64_t>(tokens[rank].num_tokens);
      group_major[rank].resize(quantized[rank].scales.size());
      for (int64_t token = 0; token < t; ++token)
        for (int64_t g = 0; g < groups; ++g)
          group_major[rank][static_cast<size_t>(g * t + token)] =
              quantized[rank].scales[static_cast<size_t>(token * groups + g)];
    }
    // Row-major, group-major, and half of the ranks with BF16 tokens in the same call.
    for (int form = 0; form < 3; ++form) {
      SCOPED_TRACE(form);
      expect_same_bits(right, group.forward(tokens, [&](uint32_t rank, ForwardArgs& args) {
        if (form == 2 && rank % 2 == 0) return;
        const auto t = static_cast<int64_t>(tokens[rank].num_tokens);
        args.hidden_states = TensorView::dense(quantized[rank].codes.data(), DType::kFloat8E4M3, {t, hidden});
        args.hidden_states_scale = TensorView::dense(quantized[rank].scales.data(), DType::kFloat32, {t, groups});
        if (form == 1) {
          args.hidden_states_scale.data = group_major[rank].data();
          args.hidden_states_scale.strides = {1, t};
        }
        args.scale_format = ScaleFormat::kFloat32;
      }));
    }
  }
}

TEST_P(Fp8Tokens, MayHaveRowsApart) {
  const MoeShape shape{256, 64, 4, 2};
  const TestWeights weights = gen_weights(shape, 33);
  const TestTokens tokens = gen_tokens(shape, 19, 8);
  const QuantizedTokens quantized = quantize_tokens(shape, tokens);
  constexpr int64_t kTokens = 19;
  const int64_t row_stride = GetParam() == "cuda" ? 304 : 300;  // a GPU reads 16 bytes at a time
  std::vector<uint8_t> wide(static_cast<size_t>(kTokens * row_stride), 0x7f);
  for (int64_t token = 0; token < kTokens; ++token)
    std::copy_n(quantized.codes.begin() + token * 256, 256, wide.begin() + token * row_stride);
  LayerGroup group(config(shape, 32), 1, weights);
  expect_all_ok(group.created());
  expect_same_bits(group.forward({tokens}), group.forward({tokens}, [&](uint32_t, ForwardArgs& args) {
    args.hidden_states = TensorView::dense(wide.data(), DType::kFloat8E4M3, {kTokens, 256});
    args.hidden_states.strides[0] = row_stride;
    args.hidden_states_scale = TensorView::dense(quantized.scales.data(), DType::kFloat32, {kTokens, 2});
    args.scale_format = ScaleFormat::kFloat32;
  }));
}

/// Writes tokens into a layer's input views, and returns the args that name them there.
void use_views(MoeLayer& layer, const std::string& backend, const QuantizedTokens& tokens, ForwardArgs& args) {
  const InputViews views = layer.input_views();
  const auto write = [&](void* to, const void* from, uint64_t bytes) {
    if (bytes == 0) return;
    const backends::DeviceMemory* memory = api::find_backend(backend).value()->device_memory();
    if (memory == nullptr) {
      std::memcpy(to, from, bytes);
    } else {
      ASSERT_TRUE(memory->copy(to, from, bytes, 0).ok());
    }
  };
  write(views.codes.data, tokens.codes.data(), tokens.codes.size());
  write(views.scales.data, tokens.scales.data(), tokens.scales.size() * sizeof(float));
  args.hidden_states = views.codes;
  args.hidden_states_scale = views.scales;
  args.hidden_states.shape[0] = args.hidden_states_scale.shape[0] = args.output.shape[0];
  args.scale_format = ScaleFormat::kFloat32;
}

TEST_P(Fp8Tokens, MayBeWrittenIntoTheLayersViews) {
  const MoeShape shape{384, 192, 8, 4};
  const TestWeights weights = gen_weights(shape, 33);
  for (const uint32_t ranks : {1u, 4u}) {
    LayerGroup group(config(shape, 64), ranks, weights);
    expect_all_ok(group.created());
    for (const uint32_t count : {41u, 7u, 0u}) {  // fewer tokens than the views have room for, and fewer than before
      const std::vector<TestTokens> tokens = split_tokens(shape, gen_tokens(shape, count, count), ranks);
      const std::vector<RankOutput> right = group.forward(tokens);
      expect_all_ok(right);
      for (int repeat = 0; repeat < 2; ++repeat)
        expect_same_bits(right, group.forward(tokens, [&](uint32_t rank, ForwardArgs& args) {
          use_views(group.layer(rank), GetParam(), quantize_tokens(shape, tokens[rank]), args);
        }));
    }
  }
}

TEST_P(Fp8Tokens, InsideTheViewsMustBeThereAsAWhole) {
  const MoeShape shape{256, 64, 4, 2};
  const TestWeights weights = gen_weights(shape, 33);
  const std::vector<TestTokens> tokens = {gen_tokens(shape, 5, 8)};
  const QuantizedTokens quantized = quantize_tokens(shape, tokens[0]);
  LayerGroup group(config(shape, 32), 1, weights);
  expect_all_ok(group.created());
  const std::vector<RankOutput> right = group.forward(tokens);
  const std::function<void(ForwardArgs&)> spoils[] = {
      [](ForwardArgs& a) { a.hidden_states.data = static_cast<uint8_t*>(a.hidden_states.data) + 256; },
      [](ForwardArgs& a) { a.hidden_states.strides[0] = 512; },
      [](ForwardArgs& a) {
        a.hidden_states_scale.strides = {1, 5};
      },
      [&](ForwardArgs& a) {
        a.hidden_states_scale = TensorView::dense(quantized.scales.data(), DType::kFloat32, {5, 2});
      },
  };
  for (const auto& spoil : spoils) {
    expect_refused(group.forward(tokens,
                                 [&](uint32_t, ForwardArgs& args) {
                                   use_views(group.layer(0), GetParam(), quantized, args);
                                   spoil(args);
                                 }),
                   0, Code::kInvalidArgument, "must both be the layer's input views");
    expect_same_bits(right, group.forward(tokens));
  }
}

}  // namespace
}  // namespace megamoe::test
