// Weights and tokens that are made on the device, for layers too large to make on the host and copy; and comparisons
// there.
#pragma once

#include <vector>

#include "device/rig.h"

namespace megamoe::device_check {

/// The weights of all experts in device memory, in the library's layout: gate rows then up rows, FP32 scales.
class DeviceWeights {
 public:
  /// Uniform values like those of test::gen_weights: codes of numbers in [-448, 448), scales about 2 / sqrt(columns) /
  /// 448 that differ from block to block.
  DeviceWeights(const MoeShape& shape, uint64_t seed);

  /// Rank `rank`'s experts.
  ExpertWeights of(uint32_t rank, uint32_t num_ranks) const;
  const MoeShape& shape() const { return shape_; }
  const uint8_t* w13() const { return static_cast<const uint8_t*>(w13_.data()); }
  const float* w13_scale() const { return static_cast<const float*>(w13_scale_.data()); }
  const uint8_t* w2() const { return static_cast<const uint8_t*>(w2_.data()); }
  const float* w2_scale() const { return static_cast<const float*>(w2_scale_.data()); }

 private:
  MoeShape shape_;
  DeviceBuffer w13_, w13_scale_, w2_, w2_scale_;
};

/// One rank's tokens and output in device memory; ids and weights also on the host.
struct DeviceTokens {
  /// Uniform BF16 tokens; K distinct experts and positive weights that sum to 1 for each.
  DeviceTokens(const MoeShape& shape, uint32_t num_tokens, uint64_t seed);
  /// After a change of `ids` or `router`.
  void upload();
  /// Fills the output with NaN.
  void poison();
  /// The first `count` tokens from `first` on, in place.
  ForwardArgs args(uint32_t first, uint32_t count) const;
  ForwardArgs args() const { return args(0, num_tokens); }

  MoeShape shape;
  uint32_t num_tokens;
  std::vector<int64_t> ids;
  std::vector<float> router;
  DeviceBuffer hidden, device_ids, device_router, output;
};

/// Fills `count` BF16 numbers with g(seed, i mod period) of test::gen_value's kind.
void fill_bf16(void* to, uint64_t count, uint64_t seed, uint64_t period);
/// Rows in which `a` and `b` differ; row r of `b` is its row r mod `period`. Waits for the device.
uint64_t count_differing_rows(const void* a, const void* b, uint64_t num_rows, uint64_t period, uint64_t row_bytes);

/// Keeps `num_sms` SMs busy for `ns` nanoseconds with blocks that use all the shared memory of one. Returns once they
/// run, or at once with `awaited` false.
void hold_sms(uint32_t num_sms, uint64_t ns, struct CUstream_st* stream, bool awaited);
/// After a pause of `ns`: to[i] = from[i]. Does not wait.
void copy_ids_late(int64_t* to, const int64_t* from, uint64_t count, uint64_t ns, struct CUstream_st* stream);

}  // namespace megamoe::device_check
