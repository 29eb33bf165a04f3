// A layer on one GPU under test: ranks as threads, host data copied in, results copied out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/sm90/backend.h"
#include "backends/sm90/rank.h"
#include "support/data.h"

namespace megamoe::device_check {

/// Device memory that goes with its owner. Prints and exits where CUDA fails: nothing after that can be believed.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(uint64_t bytes);
  DeviceBuffer(const void* host, uint64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  void fetch(void* host, uint64_t bytes) const;
  void fill(int byte);

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

void check_cuda(int error, const char* what);

enum class Entrance { kBf16, kFp8, kFp8Views };

struct CallResult {
  Status status;
  std::vector<uint16_t> output;  // [tokens][hidden]
};

class Rig {
 public:
  /// @param instance  null: the plan's choice
  Rig(const LayerConfig& config, uint32_t num_ranks, const sm90::KernelInstance* instance = nullptr);
  ~Rig();

  /// Each rank gets its experts' part.
  void load(const test::TestWeights& weights, W13Layout layout = W13Layout::kGateUp);
  /// One call on every rank at once; rank r has tokens[r]. A rank listed in `absent` does not come.
  std::vector<CallResult> run(const std::vector<test::TestTokens>& tokens, Entrance entrance = Entrance::kBf16,
                              int absent = -1, uint64_t timeout_ns = 0);
  void reset();

  sm90::Sm90Rank& rank(uint32_t r) { return *ranks_[r]; }
  const backends::BackendPlan& plan() const { return plan_; }
  const LayerConfig& config() const { return config_; }

 private:
  LayerConfig config_;
  uint32_t num_ranks_;
  backends::BackendPlan plan_;
  std::vector<std::shared_ptr<SymmetricMemory>> group_;
  std::vector<std::unique_ptr<sm90::Sm90Rank>> ranks_;
  DeviceBuffer w13_, w13_scale_, w2_, w2_scale_;
};

}  // namespace megamoe::device_check
