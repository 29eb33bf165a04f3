// The shortest whole program: one rank on the CPU, two tokens, four experts whose weights are all alike.
#include <cstdio>
#include <vector>

#include "megamoe/moe_layer.h"

int main() {
  using namespace megamoe;
  using enum DType;
  const uint32_t T = 2, H = 256, I = 128, E = 4, K = 2;                // tokens, hidden, intermediate, experts, top-k
  std::vector<uint8_t> w13(E * 2 * I * H, 0x38), w2(E * H * I, 0x38);  // E4M3 codes: 0x38 is 1.0
  std::vector<float> w13_scale(E * 2 * H / 128, 1.0F / H), w2_scale(E * H / 128, 1.0F / I);
  std::vector<uint16_t> tokens(T * H, 0x3f80), output(T * H);  // BF16 bits: 0x3f80 is 1.0
  std::vector<int64_t> topk_ids{0, 3, 2, -1};                  // -1: no expert in this slot
  std::vector<float> topk_weights{0.25F, 0.75F, 1.0F, 0.0F};
  const auto view = [](auto& data, DType type, auto... n) { return TensorView::dense(data.data(), type, {n...}); };
  const TensorView w[] = {view(w13, kFloat8E4M3, E, 2 * I, H), view(w13_scale, kFloat32, E, 2, I / 128, H / 128),
                          view(w2, kFloat8E4M3, E, H, I), view(w2_scale, kFloat32, E, H / 128, I / 128)};
  auto group = make_thread_group(1);  // rank r of R takes group.value()[r], in a thread of its own
  auto layer = MoeLayer::create({.shape = {H, I, E, K}, .max_tokens_per_rank = T}, group.value()[0]);
  if (!layer.ok()) return std::puts(layer.status().message().c_str()), 1;
  Status status = layer->load_weights({w[0], w[1], w[2], w[3], W13Layout::kGateUp, ScaleFormat::kFloat32});
  if (status.ok())
    status = layer->forward({.hidden_states = view(tokens, kBFloat16, T, H),
                             .topk_ids = view(topk_ids, kInt64, T, K),
                             .topk_weights = view(topk_weights, kFloat32, T, K),
                             .output = view(output, kBFloat16, T, H)});
  std::puts(status.ok() ? "every output value is silu(1) = 0.73" : status.message().c_str());
  return status.ok() && output.front() == 0x3f3b && output.back() == 0x3f3b ? 0 : 1;
}
