// What one call must do at least: the weights that it reads and the products that it computes, as times of an H200.
#pragma once

#include <cstdint>
#include <span>

#include "megamoe/shape.h"

namespace megamoe::bench {

/// Rates that this project measured on an H200 (SXM, 700 W), each with nothing else running.
struct GpuRates {
  double read_bytes_per_s = 4.46e12;  ///< Reading memory far beyond the L2, all SMs.
  /// A bare grouped GEMM with exact promotion per 128 and a BF16 epilogue, cold: peak / (1 + depth_lost / K). Between
  /// K = 2,048 and 7,168 it is within 1.6% of what was measured (1,270 to 1,367 TFLOPS).
  double gemm_flops_per_s = 1.410e15;
  double gemm_depth_lost = 226;

  double gemm_us(double flops, uint32_t depth) const {
    return flops * (1 + gemm_depth_lost / depth) / gemm_flops_per_s * 1e6;
  }
};

/// Of one call, on the GPU that has most to do.
struct CallLoad {
  double weights_us = 0;          ///< The weights of the experts that were hit, read once.
  double gemm_us = 0;             ///< Both GEMMs over the rows that were routed, none padded.
  double rows_max_over_mean = 0;  ///< Of the ranks.
};

/// @param gpus  the GPU of each rank; equal numbers share one
/// @param ids   every rank's experts, one after another; -1 is no expert
CallLoad load_of(const MoeShape& shape, std::span<const int32_t> gpus, std::span<const int32_t> ids,
                 const GpuRates& rates = {});

}  // namespace megamoe::bench
