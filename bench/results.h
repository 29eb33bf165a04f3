// Reads the figures that `megamoe bench --device cuda --append` has written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megamoe/shape.h"
#include "megamoe/status.h"

namespace megamoe::bench {

struct Figure {
  std::string model, protocol, routing, input;
  MoeShape shape;  ///< Of all ranks.
  uint32_t num_ranks = 1, num_gpus = 1, tokens_per_rank = 1;
  uint32_t block_rows = 0;  ///< 0: the plan's choice.
  double median_us = 0;
};

/// One figure a line. Errors: kBadFile naming file and line.
Result<std::vector<Figure>> read_figures(const std::string& path);

}  // namespace megamoe::bench
