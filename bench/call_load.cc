// Counts the rows of each expert; every other figure follows.
#include "bench/call_load.h"

#include <algorithm>
#include <map>
#include <vector>

namespace megamoe::bench {

CallLoad load_of(const MoeShape& shape, std::span<const int32_t> gpus, std::span<const int32_t> ids,
                 const GpuRates& rates) {
  const auto num_ranks = static_cast<uint32_t>(gpus.size());
  const uint32_t local = shape.num_experts / num_ranks;
  std::vector<uint64_t> rows(shape.num_experts, 0);
  for (const int32_t id : ids)
    if (id >= 0) ++rows[static_cast<size_t>(id)];
  struct Sum {
    double rows = 0, experts = 0;
  };
  std::map<int32_t, Sum> by_gpu;
  double all_rows = 0, most_rows = 0;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    double rank_rows = 0;
    for (uint32_t expert = rank * local; expert < (rank + 1) * local; ++expert) {
      rank_rows += static_cast<double>(rows[expert]);
      by_gpu[gpus[rank]].experts += rows[expert] != 0 ? 1 : 0;
    }
    by_gpu[gpus[rank]].rows += rank_rows;
    all_rows += rank_rows;
    most_rows = std::max(most_rows, rank_rows);
  }
  CallLoad load;
  const double products = static_cast<double>(shape.hidden) * shape.intermediate;
  for (const auto& [gpu, sum] : by_gpu) {
    load.weights_us = std::max(load.weights_us, 3 * products * sum.experts / rates.read_bytes_per_s * 1e6);
    load.gemm_us = std::max(load.gemm_us, rates.gemm_us(4 * products * sum.rows, shape.hidden) +
                                              rates.gemm_us(2 * products * sum.rows, shape.intermediate));
  }
  load.rows_max_over_mean = all_rows > 0 ? most_rows * num_ranks / all_rows : 1;
  return load;
}

}  // namespace megamoe::bench
