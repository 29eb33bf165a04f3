// R ranks of one layer as threads of the test.
#include "support/layer_group.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <thread>

#include "core/formats/bf16.h"
#include "core/reference/row_error.h"
#include "core/tensor_extent.h"

namespace megamoe::test {

std::vector<Status> on_each_rank(uint32_t num_ranks, const std::function<Status(uint32_t)>& body) {
  std::vector<Status> statuses(num_ranks);
  std::vector<std::jthread> threads;
  threads.reserve(num_ranks);
  for (uint32_t rank = 0; rank < num_ranks; ++rank) threads.emplace_back([&, rank] { statuses[rank] = body(rank); });
  threads.clear();
  return statuses;
}

std::vector<TensorView*> views_of(ExpertWeights& w) {
  return {&w.w13,        &w.w13_scale,        &w.w2,        &w.w2_scale,
          &w.shared_w13, &w.shared_w13_scale, &w.shared_w2, &w.shared_w2_scale};
}

std::vector<TensorView*> views_of(ForwardArgs& a) {
  return {&a.hidden_states, &a.hidden_states_scale, &a.topk_ids,   &a.topk_weights,
          &a.output,        &a.shared_weights,      &a.expert_map, &a.cumulative_recv_counts};
}

Result<std::vector<std::shared_ptr<SymmetricMemory>>> make_members(const std::string& backend, uint32_t num_ranks) {
  return backend == "cuda" ? make_cuda_thread_group(num_ranks) : make_thread_group(num_ranks);
}

ExpertWeights rank_weights(const TestWeights& w, uint32_t rank, uint32_t num_ranks) {
  const int64_t n = w.shape.num_experts / num_ranks, h = w.shape.hidden, i = w.shape.intermediate;
  const int64_t h_blocks = h / kScaleGroup, i_blocks = (i + kScaleGroup - 1) / kScaleGroup;
  const uint64_t first = uint64_t{rank} * static_cast<uint64_t>(n);
  ExpertWeights weights;
  weights.w13 =
      TensorView::dense(w.w13.data() + first * w.w13_elements_per_expert(), DType::kFloat8E4M3, {n, 2 * i, h});
  weights.w13_scale = TensorView::dense(w.w13_scale.data() + first * w.w13_scales_per_expert(), DType::kFloat32,
                                        {n, 2, i_blocks, h_blocks});
  weights.w2 = TensorView::dense(w.w2.data() + first * w.w2_elements_per_expert(), DType::kFloat8E4M3, {n, h, i});
  weights.w2_scale =
      TensorView::dense(w.w2_scale.data() + first * w.w2_scales_per_expert(), DType::kFloat32, {n, h_blocks, i_blocks});
  weights.w13_layout = W13Layout::kGateUp;
  weights.scale_format = ScaleFormat::kFloat32;
  if (w.shared != nullptr) {
    const ExpertWeights shared = rank_weights(*w.shared, 0, 1);
    weights.shared_w13 = shared.w13;
    weights.shared_w13_scale = shared.w13_scale;
    weights.shared_w2 = shared.w2;
    weights.shared_w2_scale = shared.w2_scale;
  }
  return weights;
}

LayerConfig small_config(const MoeShape& shape, uint32_t max_tokens) {
  LayerConfig config;
  config.shape = shape;
  config.max_tokens_per_rank = max_tokens;
  config.backend = "cpu";
  config.num_threads = 1;
  config.timeout_ns = 60'000'000'000;
  return config;
}

namespace {

Result<std::vector<api::TensorStore>> make_stores(const std::string& backend, uint32_t num_ranks) {
  const Result<api::TensorStore> store = api::TensorStore::create(backend);
  if (!store.ok()) return store.status();
  return std::vector<api::TensorStore>(num_ranks, store.value());
}

}  // namespace

LayerGroup::LayerGroup(const LayerConfig& config, uint32_t num_ranks, const TestWeights& weights)
    : config_(config), num_ranks_(num_ranks), layers_(num_ranks) {
  const auto group = make_members(config.backend, num_ranks);
  if (!group.ok()) {
    created_.assign(num_ranks, group.status());
    return;
  }
  open(group.value(), weights);
}

LayerGroup::LayerGroup(const LayerConfig& config, const std::vector<std::shared_ptr<SymmetricMemory>>& members,
                       const TestWeights& weights)
    : config_(config), num_ranks_(static_cast<uint32_t>(members.size())), layers_(members.size()) {
  open(members, weights);
}

void LayerGroup::open(const std::vector<std::shared_ptr<SymmetricMemory>>& members, const TestWeights& weights) {
  const Result<std::vector<api::TensorStore>> stores = make_stores(config_.backend, num_ranks_);
  if (!stores.ok()) {
    created_.assign(num_ranks_, stores.status());
    return;
  }
  weights_ = stores.value();
  created_ = on_each_rank(num_ranks_, [&](uint32_t rank) -> Status {
    auto layer = MoeLayer::create(config_, members[rank]);
    if (!layer.ok()) return layer.status();
    layers_[rank] = std::move(layer).value();
    ExpertWeights views = rank_weights(weights, rank, num_ranks_);
    for (TensorView* view : views_of(views)) MEGAMOE_RETURN_IF_ERROR(weights_[rank].place(*view));
    return layers_[rank]->load_weights(views);
  });
}

Status LayerGroup::usable() const {
  for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
    if (layers_[rank].has_value()) continue;
    const Status reason = created_[rank].ok() ? Status{Code::kInternal, "the layer is gone"} : created_[rank];
    ADD_FAILURE() << "rank " << rank << " has no layer: " << reason.message();
    return reason;
  }
  return {};
}

MoeLayer& LayerGroup::layer(uint32_t rank) {
  if (!usable().ok()) std::abort();
  return *layers_[rank];
}

RankOutput unwritten_output(const LayerConfig& config) {
  RankOutput output;
  if (config.backend == "cuda") {
    output.max_rel_l2 = config.shape.intermediate >= 1024 ? 1.5e-2 : 4e-2;
    output.min_cosine = 0.999;
  }
  return output;
}

namespace {

/// Places what still lies in host memory.
Status place_args(api::TensorStore& store, ForwardArgs& args) {
  for (TensorView* view : views_of(args))
    if (view->device == Device::kCpu) MEGAMOE_RETURN_IF_ERROR(store.place(*view));
  return {};
}

bool lies_in(const TensorView& view, const TensorView& memory) {
  const auto* data = static_cast<const std::byte*>(view.data);
  const auto* begin = static_cast<const std::byte*>(memory.data);
  return data >= begin && data < begin + core::extent_of(memory).bytes();
}

/// Views that got other memory after they had been placed: that of the test, which lies on the host, unless it is the
/// layer's own.
void mark_replaced(const InputViews& own, ForwardArgs before, ForwardArgs& args) {
  const std::vector<TensorView*> old = views_of(before), now = views_of(args);
  for (size_t i = 0; i < now.size(); ++i)
    if (now[i]->data != nullptr && now[i]->data != old[i]->data && !lies_in(*now[i], own.codes) &&
        !lies_in(*now[i], own.scales))
      now[i]->device = Device::kCpu;
}

}  // namespace

LayerGroup::~LayerGroup() {
  (void)on_each_rank(num_ranks_, [&](uint32_t rank) {  // leaving is collective too
    layers_[rank].reset();
    return Status{};
  });
}

ForwardArgs forward_args(const MoeShape& shape, const TestTokens& tokens, std::vector<uint16_t>& output) {
  const auto t = static_cast<int64_t>(tokens.num_tokens);
  const int64_t h = shape.hidden, k = shape.top_k;
  output.assign(static_cast<size_t>(t * h), kPoison);
  ForwardArgs args;
  args.hidden_states = TensorView::dense(t == 0 ? nullptr : tokens.hidden.data(), DType::kBFloat16, {t, h});
  args.topk_ids = TensorView::dense(t == 0 ? nullptr : tokens.topk_ids.data(), DType::kInt64, {t, k});
  args.topk_weights = TensorView::dense(t == 0 ? nullptr : tokens.topk_weights.data(), DType::kFloat32, {t, k});
  args.output = TensorView::dense(t == 0 ? nullptr : output.data(), DType::kBFloat16, {t, h});
  if (!tokens.shared_weights.empty()) {
    const int64_t m = static_cast<int64_t>(tokens.shared_weights.size()) / t;
    args.shared_weights = TensorView::dense(tokens.shared_weights.data(), DType::kFloat32, {t, m});
  }
  return args;
}

ForwardArgs LayerGroup::args(uint32_t, const TestTokens& tokens, std::vector<uint16_t>& output) const {
  return forward_args(config_.shape, tokens, output);
}

std::vector<RankOutput> LayerGroup::forward(const std::vector<TestTokens>& tokens) {
  return forward(tokens, [](uint32_t, ForwardArgs&) {});
}

std::vector<RankOutput> LayerGroup::forward(const std::vector<TestTokens>& tokens,
                                            const std::function<void(uint32_t, ForwardArgs&)>& adjust) {
  return forward(tokens, adjust, std::vector<bool>(num_ranks_, true));
}

std::vector<RankOutput> LayerGroup::forward_without(const std::vector<uint32_t>& left_out,
                                                    const std::vector<TestTokens>& tokens,
                                                    const std::function<void(uint32_t, ForwardArgs&)>& adjust) {
  std::vector<bool> takes_part(num_ranks_, true);
  for (const uint32_t rank : left_out) takes_part[rank] = false;
  return forward(
      tokens,
      [&](uint32_t rank, ForwardArgs& args) {
        for (uint32_t other = 0; other < num_ranks_; ++other)
          if (takes_part[other]) args.active_ranks[other / 64] |= uint64_t{1} << other % 64;
        if (adjust) adjust(rank, args);
      },
      takes_part);
}

std::vector<RankOutput> LayerGroup::forward(const std::vector<TestTokens>& tokens,
                                            const std::function<void(uint32_t, ForwardArgs&)>& adjust,
                                            const std::vector<bool>& takes_part) {
  std::vector<RankOutput> outputs(num_ranks_, unwritten_output(config_));
  if (const Status status = usable(); !status.ok()) {
    for (RankOutput& output : outputs) output.status = status;
    return outputs;
  }
  std::vector<api::TensorStore> stores = make_stores(config_.backend, num_ranks_).value();
  std::barrier placed(num_ranks_);
  const std::vector<Status> statuses = on_each_rank(num_ranks_, [&](uint32_t rank) {
    ForwardArgs call = args(rank, tokens[rank], outputs[rank].rows);
    Status ready = place_args(stores[rank], call);  // before sizes change, again for what adjust puts in its place
    const ForwardArgs before = call;
    adjust(rank, call);
    mark_replaced(layers_[rank]->input_views(), before, call);
    if (ready.ok()) ready = place_args(stores[rank], call);
    if (config_.backend == "cuda") placed.arrive_and_wait();  // nothing is allocated beside a kernel that waits
    if (!takes_part[rank]) return Status{};
    if (!ready.ok()) return ready;
    const Status status = layers_[rank]->forward(call);
    ready = stores[rank].fetch(call.output);
    if (ready.ok()) ready = stores[rank].fetch(call.cumulative_recv_counts);
    return status.ok() ? ready : status;
  });
  for (uint32_t rank = 0; rank < num_ranks_; ++rank) outputs[rank].status = statuses[rank];
  return outputs;
}

std::vector<std::vector<RankOutput>> LayerGroup::forward_sequence(const std::vector<std::vector<TestTokens>>& calls) {
  std::vector<std::vector<RankOutput>> outputs(calls.size(),
                                               std::vector<RankOutput>(num_ranks_, unwritten_output(config_)));
  if (const Status status = usable(); !status.ok()) {
    for (std::vector<RankOutput>& call : outputs)
      for (RankOutput& output : call) output.status = status;
    return outputs;
  }
  std::vector<std::vector<ForwardArgs>> placed(num_ranks_, std::vector<ForwardArgs>(calls.size()));
  std::vector<api::TensorStore> stores = make_stores(config_.backend, num_ranks_).value();
  expect_all_ok(on_each_rank(num_ranks_, [&](uint32_t rank) -> Status {
    for (size_t i = 0; i < calls.size(); ++i) {
      placed[rank][i] = args(rank, calls[i][rank], outputs[i][rank].rows);
      MEGAMOE_RETURN_IF_ERROR(place_args(stores[rank], placed[rank][i]));
    }
    return {};
  }));
  expect_all_ok(on_each_rank(num_ranks_, [&](uint32_t rank) {
    for (size_t i = 0; i < calls.size(); ++i) {
      RankOutput& output = outputs[i][rank];
      output.status = layers_[rank]->forward(placed[rank][i]);
      if (!output.status.ok()) return output.status;
    }
    return Status{};
  }));
  expect_all_ok(on_each_rank(num_ranks_, [&](uint32_t rank) -> Status {
    for (const ForwardArgs& call : placed[rank]) MEGAMOE_RETURN_IF_ERROR(stores[rank].fetch(call.output));
    return {};
  }));
  return outputs;
}

std::vector<Status> LayerGroup::reset() {
  if (const Status status = usable(); !status.ok()) return std::vector<Status>(num_ranks_, status);
  return on_each_rank(num_ranks_, [&](uint32_t rank) { return layers_[rank]->reset(); });
}

void expect_all_ok(const std::vector<Status>& statuses) {
  for (size_t rank = 0; rank < statuses.size(); ++rank)
    EXPECT_TRUE(statuses[rank].ok()) << "rank " << rank << ": " << statuses[rank].message();
}

void expect_all_ok(const std::vector<RankOutput>& outputs) {
  for (size_t rank = 0; rank < outputs.size(); ++rank)
    EXPECT_TRUE(outputs[rank].status.ok()) << "rank " << rank << ": " << outputs[rank].status.message();
}

void expect_matches_oracle(const TestWeights& weights, std::optional<float> clamp,
                           const std::vector<TestTokens>& tokens, const std::vector<RankOutput>& outputs) {
  const reference::Layer layer = weights.layer(clamp);
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    expect_matches_oracle(layer, tokens[rank].input(), outputs[rank]);
  }
}

void expect_matches_oracle(const reference::Layer& layer, const reference::Input& input, const RankOutput& output) {
  const uint32_t hidden = layer.shape.hidden;
  ASSERT_TRUE(output.status.ok()) << output.status.message();
  ASSERT_EQ(output.rows.size(), input.num_tokens * hidden);
  std::vector<double> expected(hidden);
  for (uint64_t token = 0; token < input.num_tokens; ++token) {
    reference::forward_row(layer, input, token, reference::Mode::kContract, expected.data());
    const reference::RowError error =
        reference::row_error(output.rows.data() + token * hidden, expected.data(), hidden);
    EXPECT_LE(error.rel_l2, output.max_rel_l2) << "token " << token;
    EXPECT_GE(error.cosine, output.min_cosine) << "token " << token;
  }
}

void expect_tag(const MoeShape& shape, const std::vector<TestTokens>& tokens, const std::vector<RankOutput>& outputs) {
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    ASSERT_TRUE(outputs[rank].status.ok()) << "rank " << rank << ": " << outputs[rank].status.message();
    for (uint64_t token = 0; token < tokens[rank].num_tokens; ++token) {
      for (uint32_t column = 0; column < shape.hidden; ++column) {
        const uint16_t bits = outputs[rank].rows[token * shape.hidden + column];
        const double expected = tag_expected(shape, tokens[rank], token, column);
        if (expected == 0) {
          ASSERT_EQ(bits, 0) << "rank " << rank << " token " << token << " column " << column << " must be +0";
        } else {
          ASSERT_NEAR(core::bf16_decode(bits), expected, 2 * bf16_ulp(expected))
              << "rank " << rank << " token " << token << " column " << column;
        }
      }
    }
  }
}

void expect_same_bits(const std::vector<RankOutput>& a, const std::vector<RankOutput>& b) {
  const auto joined = [](const std::vector<RankOutput>& outputs) {
    std::vector<uint16_t> rows;
    for (const RankOutput& output : outputs) rows.insert(rows.end(), output.rows.begin(), output.rows.end());
    return rows;
  };
  expect_all_ok(a);
  expect_all_ok(b);
  const std::vector<uint16_t> x = joined(a), y = joined(b);
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], y[i]) << "element " << i;
}

void expect_refused(const std::vector<RankOutput>& outputs, uint32_t culprit, Code code, const std::string& reason) {
  for (uint32_t rank = 0; rank < outputs.size(); ++rank) {
    const Status& status = outputs[rank].status;
    EXPECT_EQ(name(status.code()), name(rank == culprit ? code : Code::kPeerFailed)) << "rank " << rank;
    EXPECT_NE(status.message().find(reason), std::string::npos) << "rank " << rank << ": " << status.message();
    if (rank == culprit) continue;
    EXPECT_NE(status.message().find("rank " + std::to_string(culprit)), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(outputs[culprit].status.message()), std::string::npos)
        << "rank " << rank << " gives another reason: " << status.message();
  }
  expect_untouched(outputs);
}

void expect_untouched(const std::vector<RankOutput>& outputs) {
  for (size_t rank = 0; rank < outputs.size(); ++rank)
    for (size_t i = 0; i < outputs[rank].rows.size(); ++i)
      ASSERT_EQ(outputs[rank].rows[i], kPoison) << "rank " << rank << " wrote element " << i;
}

std::vector<uint16_t> row_of(const MoeShape& shape, const RankOutput& output, uint64_t token) {
  const auto first = output.rows.begin() + static_cast<int64_t>(token * shape.hidden);
  return {first, first + shape.hidden};
}

TestTokens join_tokens(const std::vector<TestTokens>& parts) {
  TestTokens all;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (const TestTokens& part : parts) {
    all.num_tokens += part.num_tokens;
    append(all.hidden, part.hidden);
    append(all.topk_ids, part.topk_ids);
    append(all.topk_weights, part.topk_weights);
    append(all.shared_weights, part.shared_weights);
    append(all.tags, part.tags);
  }
  return all;
}

std::vector<TestTokens> split_tokens(const MoeShape& shape, const TestTokens& all, uint32_t num_ranks) {
  std::vector<TestTokens> parts(num_ranks);
  uint64_t first = 0;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    TestTokens& part = parts[rank];
    part.num_tokens = all.num_tokens / num_ranks + (rank < all.num_tokens % num_ranks ? 1 : 0);
    const auto slice = [&](const auto& from, auto& to, uint64_t width) {
      if (from.empty()) return;
      to.assign(from.begin() + static_cast<int64_t>(first * width),
                from.begin() + static_cast<int64_t>((first + part.num_tokens) * width));
    };
    slice(all.hidden, part.hidden, shape.hidden);
    slice(all.topk_ids, part.topk_ids, shape.top_k);
    slice(all.topk_weights, part.topk_weights, shape.top_k);
    if (all.num_tokens != 0) slice(all.shared_weights, part.shared_weights, all.shared_weights.size() / all.num_tokens);
    slice(all.tags, part.tags, 1);
    first += part.num_tokens;
  }
  return parts;
}

}  // namespace megamoe::test
