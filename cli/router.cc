// Draws without replacement, by the largest of log weight + Gumbel noise.
#include "cli/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cli/random_streams.h"

namespace megamoe::cli {

Router::Router(const MoeShape& shape, uint32_t num_ranks, const Routing& routing, uint64_t seed)
    : shape_(shape), routing_(routing), seed_(seed), order_(shape.num_experts), log_weight_(shape.num_experts) {
  std::iota(order_.begin(), order_.end(), 0U);
  if (routing.kind == Routing::Kind::kOneRank) order_.resize(shape.num_experts / num_ranks);
  // Popularity in a random order of the experts, the same for every token.
  std::vector<uint64_t> place(order_.size());
  for (size_t i = 0; i < place.size(); ++i) place[i] = mix(stream_key(seed, Stream::kIds, ~uint64_t{0}) + i * kGolden);
  std::vector<uint32_t> ranking = order_;
  std::sort(ranking.begin(), ranking.end(), [&](uint32_t a, uint32_t b) { return place[a] < place[b]; });
  for (size_t n = 0; n < ranking.size(); ++n)
    log_weight_[ranking[n]] = -routing.exponent * std::log(static_cast<double>(n + 1));
  key_.resize(order_.size());
}

void Router::draw(uint64_t token, int64_t* ids) {
  if (routing_.kind == Routing::Kind::kOneExpert) {
    std::fill_n(ids, shape_.top_k, int64_t{hot_expert()});
    return;
  }
  const uint64_t key = stream_key(seed_, Stream::kIds, token);
  for (size_t i = 0; i < key_.size(); ++i) key_[i] = log_weight_[i] - std::log(-std::log(unit(mix(key + i * kGolden))));
  if (routing_.kind == Routing::Kind::kHot) key_[hot_expert()] = std::numeric_limits<double>::infinity();
  const size_t distinct = std::min<size_t>(shape_.top_k, order_.size());
  std::iota(order_.begin(), order_.end(), 0U);
  std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(distinct), order_.end(),
                    [&](uint32_t a, uint32_t b) { return key_[a] > key_[b]; });
  for (size_t slot = 0; slot < shape_.top_k; ++slot) ids[slot] = order_[slot % distinct];
}

}  // namespace megamoe::cli
