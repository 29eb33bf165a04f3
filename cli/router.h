// Draws the experts of random tokens, by a chosen skew.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/options.h"
#include "megamoe/shape.h"

namespace megamoe::cli {

/// Not thread-safe.
class Router {
 public:
  Router(const MoeShape& shape, uint32_t num_ranks, const Routing& routing, uint64_t seed);

  /// Fills ids[0 .. top_k); they depend on the seed and the token's number alone.
  void draw(uint64_t token, int64_t* ids);

 private:
  uint32_t hot_expert() const { return static_cast<uint32_t>(seed_ % shape_.num_experts); }

  MoeShape shape_;
  Routing routing_;
  uint64_t seed_;
  std::vector<uint32_t> order_;
  std::vector<double> log_weight_;
  std::vector<double> key_;
};

}  // namespace megamoe::cli
