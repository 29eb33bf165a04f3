// A layer on one GPU under test: ranks as threads, host data copied in, results copied out.
#pragma once

#include <functional>
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
/// From the device, at once.
void fetch_bytes(void* host, const void* device, uint64_t bytes);
/// A region of a rank's workspace.
template <class T>
std::vector<T> fetch_region(const protocol::RankView& view, const protocol::Region<T>& region) {
  std::vector<T> host(region.count);
  fetch_bytes(host.data(), region.in(view.own()), region.bytes());
  return host;
}

class DeviceWeights;

/// Deadlines of MEGAMOE_DEVICE_CHECK_DEADLINE_S seconds, which a run under a sanitizer needs to be long; 20 s where it
/// is not set.
LayerConfig check_config(const MoeShape& shape, uint32_t max_tokens);
/// What the oracle allows a row, relative L2. Measured with the data of these checks: at most 1.1e-2 with an
/// intermediate size of 1,024 or more and 3.4e-2 with 128 to 256, the same for every tile and plan; single E4M3 codes
/// that flip because tensor cores add with about 13 fraction bits make most of it.
double row_limit(const MoeShape& shape);

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
  /// The same for weights that were made on the device, which must outlive this.
  void load(const DeviceWeights& weights);
  /// One call on every rank at once with tensors of the device; `before(rank)` runs on the rank's thread first.
  std::vector<Status> forward(
      const std::vector<ForwardArgs>& args, const std::function<void(uint32_t)>& before = [](uint32_t) {});
  /// One call on every rank at once; rank r has tokens[r]. A rank listed in `absent` does not come.
  std::vector<CallResult> run(const std::vector<test::TestTokens>& tokens, Entrance entrance = Entrance::kBf16,
                              int absent = -1, uint64_t timeout_ns = 0);
  void reset();

  sm90::Sm90Rank& rank(uint32_t r) { return *ranks_[r]; }
  const backends::BackendPlan& plan() const { return plan_; }
  const LayerConfig& config() const { return config_; }
  uint32_t num_ranks() const { return num_ranks_; }

 private:
  LayerConfig config_;
  uint32_t num_ranks_;
  backends::BackendPlan plan_;
  std::vector<std::shared_ptr<SymmetricMemory>> group_;
  std::vector<std::unique_ptr<sm90::Sm90Rank>> ranks_;
  DeviceBuffer w13_, w13_scale_, w2_, w2_scale_;
};

}  // namespace megamoe::device_check
