// The small configurations of the exploration.
#include "exploration.h"

namespace megamoe::test {
namespace {

/// Tokens of one rank whose ids follow a pattern that differs from call to call.
ModelInputs pattern(uint32_t num_tokens, uint32_t top_k, uint32_t num_experts, uint32_t shift) {
  ModelInputs inputs;
  inputs.num_tokens = num_tokens;
  for (uint32_t i = 0; i < num_tokens * top_k; ++i) inputs.topk_ids.push_back((i * (i + 3) / 2 + shift) % num_experts);
  return inputs;
}

/// `num_tokens` tokens, all masked but every 17th: several input blocks and combine groups in few steps.
ModelInputs sparse(uint32_t num_tokens, uint32_t shift) {
  ModelInputs inputs;
  inputs.num_tokens = num_tokens;
  for (uint32_t i = 0; i < num_tokens; ++i)
    inputs.topk_ids.push_back(i % 17 == 0 ? int64_t{(i + shift) % 2} : int64_t{-1});
  return inputs;
}

std::vector<ModelConfig> make_configs() {
  ModelConfig smallest;
  smallest.name = "one token a rank";
  smallest.max_tokens = 1;
  smallest.calls = {{pattern(1, 1, 2, 1), pattern(1, 1, 2, 1)}};

  ModelConfig narrow;
  narrow.name = "rings of one block";
  narrow.calls = {{pattern(2, 1, 2, 0), pattern(3, 1, 2, 1)},
                  {pattern(3, 1, 2, 1), pattern(1, 1, 2, 0)},
                  {pattern(1, 1, 2, 0), pattern(2, 1, 2, 0)}};

  ModelConfig columns;
  columns.name = "top-2, blocks of two rows, two column tiles";
  columns.top_k = 2;
  columns.block_m = 2;
  columns.token_ring_blocks = columns.act_ring_blocks = columns.unit_blocks = 2;
  columns.num_l1_tiles = columns.num_l2_tiles = 2;
  columns.calls = {{pattern(2, 2, 2, 0), pattern(3, 2, 2, 1)}, {pattern(3, 2, 2, 1), pattern(2, 2, 2, 1)}};

  ModelConfig extra = columns;
  extra.name = "an expert's last block holds a further row";
  extra.extra_m = 1;
  extra.calls = {{pattern(3, 2, 2, 0), pattern(3, 2, 2, 1)}, {pattern(2, 2, 2, 1), pattern(3, 2, 2, 1)}};

  ModelConfig workers = narrow;
  workers.name = "two workers, two column tiles";
  workers.num_workers = 2;
  workers.num_l1_tiles = workers.num_l2_tiles = 2;
  workers.calls.resize(2);

  ModelConfig refusal = narrow;
  refusal.name = "a refused call between two good ones, a rank without tokens";
  refusal.calls = {{pattern(2, 1, 2, 0), {}}, {pattern(2, 1, 2, 1), {2, {7, 0}}}, {{}, pattern(3, 1, 2, 0)}};

  ModelConfig wide = narrow;
  wide.name = "several input blocks and combine groups";
  wide.max_tokens = 35;
  wide.calls = {{sparse(35, 0), sparse(18, 1)}, {sparse(18, 0), sparse(35, 0)}, {sparse(35, 1), sparse(35, 0)}};

  ModelConfig absent = narrow;
  absent.name = "three ranks, one never calls";
  absent.num_ranks = 3;
  absent.num_experts = 3;
  absent.absent_rank = 1;
  absent.calls = {{pattern(2, 1, 3, 0), {}, pattern(2, 1, 3, 1)}};
  ModelConfig leaving = narrow;
  leaving.name = "three ranks, of which two are left out one after the other";
  leaving.num_ranks = 3;
  leaving.num_experts = 3;
  leaving.left_out_from = {4, 2, 3};  // rank 0 stays; both banks hold ranges of ranks that have left
  leaving.calls = {{pattern(2, 1, 3, 0), pattern(2, 1, 3, 1), pattern(2, 1, 3, 0)},
                   {pattern(2, 1, 3, 1), pattern(2, 1, 3, 0), pattern(2, 1, 3, 1)},
                   {pattern(3, 1, 3, 0), {}, pattern(2, 1, 3, 1)},
                   {pattern(3, 1, 3, 2), {}, {}}};
  return {smallest, narrow, columns, extra, workers, refusal, wide, absent, leaving};
}

}  // namespace

const std::vector<ModelConfig>& model_configs() {
  static const std::vector<ModelConfig> configs = make_configs();
  return configs;
}

}  // namespace megamoe::test
