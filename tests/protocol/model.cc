// The recording arithmetic and the checks of the model.
#include "model.h"

#include <cstring>

namespace megamoe::test {
namespace {

/// What is known about a row wherever it is: who sent it, in which call.
uint64_t row_identity(uint32_t epoch, uint32_t rank, uint64_t token) {
  return uint64_t{epoch} << 40 | uint64_t{rank} << 32 | (token + 1);
}
/// Stands for column tile n of the first GEMM, weighted for one slot.
uint64_t l1_value(uint64_t identity, uint32_t expert, uint32_t token_slot, uint32_t n) {
  return (identity * 0x9e3779b97f4a7c15u ^ (uint64_t{expert} << 48 | uint64_t{token_slot} << 16 | n)) | 1;
}
/// Stands for column tile n of the second GEMM, which reads all of the first.
uint64_t l2_value(uint64_t identity, uint32_t expert, uint32_t token_slot, uint32_t num_l1_tiles, uint32_t n) {
  uint64_t sum = n;
  for (uint32_t i = 0; i < num_l1_tiles; ++i) sum += l1_value(identity, expert, token_slot, i);
  return sum | 1;
}

uint64_t read(const void* from) {
  uint64_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

void ModelArithmetic::start_call(const ModelInputs& inputs, const protocol::Call& call) {
  inputs_ = &inputs;
  absent_ = call.absent;
  tiles_.clear();
  combined_.assign(inputs.num_tokens, 0);
}

int64_t ModelArithmetic::id_at(uint32_t token, uint32_t slot) const {
  const int64_t id = inputs_->topk_ids[token * config_.top_k + slot];
  const bool is_expert = id >= 0 && id < int64_t{config_.num_experts};
  return is_expert && absent_.contains(view_.owner_of(static_cast<uint32_t>(id))) ? -1 : id;
}

void ModelArithmetic::leave() {
  const auto* own = static_cast<const char*>(view_.own());
  left_as_.assign(own, own + view_.stride_bytes);
}

bool ModelArithmetic::was_written_to() const {
  return !left_as_.empty() && std::memcmp(left_as_.data(), view_.own(), left_as_.size()) != 0;
}

void ModelArithmetic::fill(MachineCore& m, const protocol::Call& call, uint32_t first, uint32_t count) {
  for (uint32_t token = first; token < first + count; ++token) {
    const uint64_t identity = row_identity(call.epoch, view_.rank, token);
    m.copy(view_.layout.input_codes.in(view_.own()) + uint64_t{token} * view_.spec.shape.hidden, &identity,
           sizeof(identity));
  }
}

void ModelArithmetic::l1_tile(MachineCore& m, const protocol::Call& call, const protocol::Tile& tile,
                              uint32_t num_rows) {
  if (!tiles_.insert({0, tile.block, tile.n}).second) fail("an L1 tile ran twice");
  const uint64_t first = uint64_t{view_.token_ring().slot(tile.block)} * view_.spec.room_m();
  const uint64_t act_first = uint64_t{view_.act_ring().slot(tile.block)} * view_.spec.room_m();
  for (uint32_t row = 0; row < num_rows; ++row) {
    scheduler_.step();
    const protocol::RowMeta meta = meta_of(tile, row);
    const auto identity = read(view_.layout.pool_codes.in(view_.own()) + (first + row) * view_.spec.shape.hidden);
    const uint64_t expected = row_identity(call.epoch, meta.source_rank, meta.token_slot / config_.top_k);
    if (identity != expected) fail("an L1 tile read another row than its own");
    const uint64_t value = l1_value(identity, view_.first_expert() + tile.local_expert, meta.token_slot, tile.n);
    m.copy(view_.layout.act_codes.in(view_.own()) + (act_first + row) * view_.spec.shape.intermediate +
               tile.n * sizeof(value),
           &value, sizeof(value));
  }
}

void ModelArithmetic::l2_tile(MachineCore& m, const protocol::Call&, const protocol::Tile& tile, uint32_t num_rows) {
  if (!tiles_.insert({1, tile.block, tile.n}).second) fail("an L2 tile ran twice");
  const uint64_t act_first = uint64_t{view_.act_ring().slot(tile.block)} * view_.spec.room_m();
  for (uint32_t row = 0; row < num_rows; ++row) {
    scheduler_.step();
    const protocol::RowMeta meta = meta_of(tile, row);
    uint64_t value = tile.n;
    for (uint32_t i = 0; i < config_.num_l1_tiles; ++i)
      value += read(view_.layout.act_codes.in(view_.own()) + (act_first + row) * view_.spec.shape.intermediate +
                    i * sizeof(value));
    value |= 1;
    if (meta.source_rank >= config_.num_ranks || meta.token_slot >= config_.max_tokens * config_.top_k)
      fail("a row has no source");
    m.copy(combine_cell(meta.source_rank, meta.token_slot, tile.n), &value, sizeof(value));
  }
}

void ModelArithmetic::sum(const protocol::Call& call, uint32_t token) {
  scheduler_.step();
  ++combined_[token];
  for (uint32_t slot = 0; slot < config_.top_k; ++slot) {
    const int64_t expert = id_at(token, slot);
    if (expert < 0) continue;
    const uint32_t token_slot = token * config_.top_k + slot;
    for (uint32_t n = 0; n < config_.num_l2_tiles; ++n) {
      void* cell = combine_cell(view_.rank, token_slot, n);
      const uint64_t expected = l2_value(row_identity(call.epoch, view_.rank, token), static_cast<uint32_t>(expert),
                                         token_slot, config_.num_l1_tiles, n);
      if (read(cell) != expected) fail("a combined row is not the right one");
      std::memset(cell, 0, sizeof(uint64_t));
    }
  }
}

void ModelArithmetic::check_call(const protocol::Call& call, const protocol::RankSet& refused) {
  bool any_refused = false;
  for (uint32_t rank = 0; rank < config_.num_ranks; ++rank) {
    if (call.absent.contains(rank)) continue;
    const bool refuses = !config_.calls[call.epoch - 1][rank].topk_ids.empty() &&
                         config_.calls[call.epoch - 1][rank].topk_ids[0] >= config_.num_experts;
    if (refused.contains(rank) != refuses) fail("a rank took part that refused, or the other way round");
    any_refused = any_refused || refuses;
  }
  if (any_refused) {
    if (!tiles_.empty()) fail("a tile ran in a refused call");
    return;
  }
  for (const uint32_t times : combined_)
    if (times != 1) fail("a token was combined " + std::to_string(times) + " times");
  const protocol::Banks own(view_, call.bank());
  const protocol::PoolPlan plan = view_.pool_plan();
  if (tiles_.size() != uint64_t{plan.num_blocks()} * (config_.num_l1_tiles + config_.num_l2_tiles))
    fail("a tile did not run");
  for (uint32_t expert = 0; expert < plan.local_experts; ++expert) {
    if (own.expert_blocks_done[expert] != plan.blocks_of(expert)) fail("expert_blocks_done is not the block count");
    for (uint32_t i = 0; i < plan.blocks_of(expert); ++i) {
      const uint32_t block = plan.expert_first_block[expert] + i;
      if (own.tokens_full[block] != plan.rows_of(expert, block)) fail("tokens_full is not the row count");
      if (own.acts_full[block] != config_.num_l1_tiles) fail("acts_full is not the tile count");
      if (own.acts_empty[block] != config_.num_l2_tiles) fail("acts_empty is not the tile count");
    }
  }
}

protocol::RowMeta ModelArithmetic::meta_of(const protocol::Tile& tile, uint32_t row) const {
  return view_.layout.row_meta.in(view_.own())[uint64_t{tile.block} * view_.spec.room_m() + row];
}

void* ModelArithmetic::combine_cell(uint32_t rank, uint32_t token_slot, uint32_t n) const {
  const uint64_t row = uint64_t{token_slot % config_.top_k} * config_.max_tokens + token_slot / config_.top_k;
  return view_.layout.combine_rows.in(view_.base(rank)) + row * view_.spec.shape.hidden +
         n * sizeof(uint64_t) / sizeof(uint16_t);
}

void ModelArithmetic::fail(const std::string& what) {
  scheduler_.fail("rank " + std::to_string(view_.rank) + ": " + what);
}

Model::Model(const ModelConfig& config, MakeRank make_rank) : config_(config) {
  protocol::RankView view;
  view.spec.shape = {128, 128, config.num_experts, config.top_k};
  view.spec.num_ranks = config.num_ranks;
  view.spec.max_tokens = config.max_tokens;
  view.spec.block_m = config.block_m;
  view.spec.extra_m = config.extra_m;
  view.spec.token_ring_blocks = config.token_ring_blocks;
  view.spec.act_ring_blocks = config.act_ring_blocks;
  view.schedule = {config.num_l1_tiles, config.num_l2_tiles, config.unit_blocks, 1, config.act_ring_blocks};
  view.layout = protocol::Workspace::plan(view.spec);
  view.stride_bytes = view.layout.bytes;
  memory_.resize(view.stride_bytes * config.num_ranks / sizeof(uint64_t) + kAlignWords);
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  view.flat_base = reinterpret_cast<char*>(core::align_up(address, uintptr_t{protocol::Workspace::kAlignBytes}));
  for (view.rank = 0; view.rank < config.num_ranks; ++view.rank) {
    views_.push_back(view);
    ranks_.push_back(make_rank(scheduler_, config_, view));
  }
  for (const auto& rank : ranks_) rank->add_agents();
  scheduler_.let_time_pass(config.absent_rank >= 0);
}

std::string Model::run(const Choices& choices) {
  std::memset(memory_.data(), 0, memory_.size() * sizeof(uint64_t));
  for (const auto& rank : ranks_) rank->restart();
  std::string failure = scheduler_.run(choices);
  if (failure.empty() && config_.absent_rank >= 0) failure = check_blame();
  for (const auto& rank : ranks_)
    if (failure.empty() && rank->was_written_to()) failure = "somebody wrote to a rank that was left out";
  return failure;
}

std::string Model::check_blame() {
  for (uint32_t rank = 0; rank < config_.num_ranks; ++rank) {
    if (static_cast<int>(rank) == config_.absent_rank) continue;
    if (!ranks_[rank]->given_up()) return "a rank went on without the absent one";
    const uint64_t word = *views_[rank].layout.abort_word.in(views_[rank].own());
    if (word == 0) return "a rank gave up and was not told why";
    const uint32_t origin = protocol::abort_rank(word);
    const protocol::ErrorRecord& record = *views_[rank].layout.error_record.in(views_[rank].base(origin));
    if (record.valid == 0 || record.rank != origin) return "the record is not there";
    if (*views_[rank].layout.error_claim.in(views_[rank].base(origin)) == 0) return "a record without a claim";
    if (record.signal != Signal::kHeader) return std::string("blamed ") + protocol::name(record.signal);
    for (uint32_t other = 0; other < config_.num_ranks; ++other)
      if (record.missing.contains(other) != (static_cast<int>(other) == config_.absent_rank))
        return "the record names the wrong ranks";
  }
  return "";
}

}  // namespace megamoe::test
