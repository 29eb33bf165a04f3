// Threads around the public interface; what a program with one rank per thread would write.
#include "cli/rank_team.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>

#include "cli/rank_layer.h"
#include "megamoe/symmetric_memory.h"

namespace megamoe::cli {
namespace {

Result<std::vector<api::TensorStore>> make_stores(const std::string& backend, const std::vector<int32_t>& devices,
                                                  uint32_t num_ranks) {
  std::vector<api::TensorStore> stores;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    auto store = api::TensorStore::create(backend, devices.empty() ? 0 : devices[rank]);
    if (!store.ok()) return store.status();
    stores.push_back(std::move(store).value());
  }
  return stores;
}

}  // namespace

Status for_each_rank(uint32_t num_ranks, const std::function<Status(uint32_t)>& work) {
  std::vector<Status> results(num_ranks);
  {
    std::vector<std::jthread> threads;
    threads.reserve(num_ranks);
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] { results[rank] = work(rank); });
    }
  }
  const auto failed = [](const Status& status) { return !status.ok(); };
  const auto is_cause = [](const Status& status) { return !status.ok() && status.code() != Code::kPeerFailed; };
  auto found = std::find_if(results.begin(), results.end(), is_cause);
  if (found == results.end()) found = std::find_if(results.begin(), results.end(), failed);
  return found == results.end() ? Status() : *found;
}

Result<RankTeam> RankTeam::create(const LayerConfig& config, const std::vector<int32_t>& devices,
                                  const std::vector<io::LayerWeights>& weights, const io::SharedExperts& shared) {
  const auto num_ranks = static_cast<uint32_t>(weights.size());
  auto stores = make_stores(config.backend, devices, num_ranks);
  if (!stores.ok()) return stores.status();
  auto group = config.backend == "cuda" ? make_cuda_thread_group(devices) : make_thread_group(num_ranks);
  if (!group.ok()) return group.status();
  RankTeam team(num_ranks, config.backend, devices);
  team.weights_ = std::move(stores).value();
  MEGAMOE_RETURN_IF_ERROR(for_each_rank(num_ranks, [&](uint32_t rank) -> Status {
    auto layer = MoeLayer::create(config, group.value()[rank]);
    if (!layer.ok()) return layer.status();
    team.layers_[rank].emplace(std::move(layer).value());
    ExpertWeights views = weights_view(weights[rank], shared);
    const Status placed =
        team.weights_[rank].place({&views.w13, &views.w13_scale, &views.w2, &views.w2_scale, &views.shared_w13,
                                   &views.shared_w13_scale, &views.shared_w2, &views.shared_w2_scale});
    return placed.ok() ? team.layers_[rank]->load_weights(views) : placed;
  }));
  return team;
}

RankTeam::~RankTeam() {
  (void)for_each_rank(num_ranks(), [this](uint32_t rank) {
    layers_[rank].reset();
    return Status();
  });
}

Result<uint64_t> RankTeam::forward(const io::LayerInputs& inputs, const std::vector<uint32_t>& tokens_per_rank,
                                   std::span<uint16_t> output) {
  using Clock = std::chrono::steady_clock;
  std::vector<uint64_t> first_token(num_ranks(), 0);
  for (uint32_t rank = 1; rank < num_ranks(); ++rank) {
    first_token[rank] = first_token[rank - 1] + tokens_per_rank[rank - 1];
  }
  auto stores = make_stores(backend_, devices_, num_ranks());
  if (!stores.ok()) return stores.status();
  std::vector<ForwardArgs> args(num_ranks());
  MEGAMOE_RETURN_IF_ERROR(for_each_rank(num_ranks(), [&](uint32_t rank) {
    ForwardArgs& mine = args[rank];
    mine = forward_args(inputs, first_token[rank], tokens_per_rank[rank], output);
    return stores.value()[rank].place(
        {&mine.hidden_states, &mine.topk_ids, &mine.topk_weights, &mine.shared_weights, &mine.output});
  }));
  std::vector<Clock::time_point> starts(num_ranks());
  std::vector<Clock::time_point> ends(num_ranks());
  std::barrier line_up(num_ranks());
  MEGAMOE_RETURN_IF_ERROR(for_each_rank(num_ranks(), [&](uint32_t rank) -> Status {
    line_up.arrive_and_wait();
    starts[rank] = Clock::now();
    const Status status = layers_[rank]->forward(args[rank]);
    ends[rank] = Clock::now();
    return status.ok() ? stores.value()[rank].fetch(args[rank].output) : status;
  }));
  const auto wall = *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count());
}

std::vector<uint64_t> RankTeam::rows_per_expert() const {
  std::vector<uint64_t> rows;
  for (const auto& layer : layers_) {
    const auto& local = layer->last_report().rows_per_expert;
    rows.insert(rows.end(), local.begin(), local.end());
  }
  return rows;
}

}  // namespace megamoe::cli
