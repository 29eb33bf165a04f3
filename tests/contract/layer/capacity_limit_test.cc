// More tokens than the layer was created for: refused on all ranks, nothing written anywhere, odd capacities work.
#include <algorithm>
#include <cstring>

#include "api/registry.h"
#include "support/backend_test.h"

namespace megamoe::test {
namespace {

class CapacityLimit : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, CapacityLimit, ::testing::ValuesIn(backend_names()), backend_label);

constexpr MoeShape kShape{256, 256, 8, 2};
constexpr uint64_t kCanaryBytes = 4096;
constexpr uint8_t kCanary = 0xa5;

/// Memory as the backend under test has it: on the host, or on the GPU.
class Place {
 public:
  explicit Place(const std::string& backend) : memory_(api::choose_backend(backend).value()->device_memory()) {}

  Device device() const { return memory_ == nullptr ? Device::kCpu : memory_->device(); }
  std::shared_ptr<std::byte> allocate(size_t bytes) const {
    if (memory_ != nullptr) return memory_->allocate(bytes, 0).value();
    return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  }
  void write(void* to, const void* from, size_t bytes) const { copy(to, from, bytes); }
  std::vector<uint8_t> read(const void* from, size_t bytes) const {
    std::vector<uint8_t> host(bytes);
    copy(host.data(), from, bytes);
    return host;
  }
  void add_canary(void* to) const { write(to, std::vector<uint8_t>(kCanaryBytes, kCanary).data(), kCanaryBytes); }
  bool is_intact(const void* canary) const {
    return read(canary, kCanaryBytes) == std::vector<uint8_t>(kCanaryBytes, kCanary);
  }

 private:
  void copy(void* to, const void* from, size_t bytes) const {
    if (memory_ == nullptr) {
      std::memcpy(to, from, bytes);
    } else {
      const Status status = memory_->copy(to, from, bytes, 0);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  const backends::DeviceMemory* memory_;
};

/// A group whose memory has canary bytes behind each rank's region.
class GuardedMemory final : public SymmetricMemory {
 public:
  GuardedMemory(std::shared_ptr<SymmetricMemory> inner, const Place& place) : inner_(std::move(inner)), place_(place) {}

  uint32_t rank() const override { return inner_->rank(); }
  uint32_t num_ranks() const override { return inner_->num_ranks(); }
  std::string_view transport() const override { return inner_->transport(); }
  Device device() const override { return inner_->device(); }
  std::string describe(uint32_t rank) const override { return inner_->describe(rank); }
  Status allocate(uint64_t bytes, uint64_t timeout_ns) override {
    bytes_ = bytes;
    MEGAMOE_RETURN_IF_ERROR(inner_->allocate(bytes + kCanaryBytes, timeout_ns));
    place_.add_canary(canary());
    return {};
  }
  Status release(uint64_t timeout_ns) override { return inner_->release(timeout_ns); }
  std::byte* base() const override { return inner_->base(); }
  uint64_t stride_bytes() const override { return inner_->stride_bytes(); }
  uint64_t allocated_bytes() const override { return inner_->allocated_bytes(); }
  Result<std::vector<std::string>> all_gather(std::string_view mine, std::string_view what,
                                              uint64_t timeout_ns) override {
    return inner_->all_gather(mine, what, timeout_ns);
  }

  bool intact() const { return place_.is_intact(canary()); }

 private:
  std::byte* canary() const { return base() + rank() * stride_bytes() + bytes_; }

  std::shared_ptr<SymmetricMemory> inner_;
  const Place& place_;
  uint64_t bytes_ = 0;
};

/// Every user buffer with canary bytes behind it.
class GuardedBuffers {
 public:
  GuardedBuffers(const Place& place, const LayerConfig& layer_config, const TestTokens& tokens)
      : place_(place), tokens_(tokens), output_(unwritten_output(layer_config)) {
    const auto t = static_cast<int64_t>(tokens.num_tokens);
    args_.hidden_states = add(tokens_.hidden.data(), DType::kBFloat16, {t, int64_t{kShape.hidden}});
    args_.topk_ids = add(tokens_.topk_ids.data(), DType::kInt64, {t, int64_t{kShape.top_k}});
    args_.topk_weights = add(tokens_.topk_weights.data(), DType::kFloat32, {t, int64_t{kShape.top_k}});
    output_.rows.assign(tokens.hidden.size(), kPoison);
    args_.output = add(output_.rows.data(), DType::kBFloat16, {t, int64_t{kShape.hidden}});
  }

  void run(MoeLayer& layer) {
    output_.status = layer.forward(args_);
    const std::vector<uint8_t> written = place_.read(args_.output.data, output_.rows.size() * sizeof(uint16_t));
    std::memcpy(output_.rows.data(), written.data(), written.size());
  }
  const RankOutput& output() const { return output_; }
  bool intact() const {
    return std::all_of(canaries_.begin(), canaries_.end(), [&](std::byte* at) { return place_.is_intact(at); });
  }

 private:
  TensorView add(const void* data, DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view = TensorView::dense(nullptr, dtype, shape);
    const auto bytes = static_cast<size_t>(view.num_elements()) * element_bytes(dtype);
    buffers_.push_back(place_.allocate(bytes + kCanaryBytes));
    view.data = buffers_.back().get();
    view.device = place_.device();
    place_.write(view.data, data, bytes);
    canaries_.push_back(buffers_.back().get() + bytes);
    place_.add_canary(canaries_.back());
    return view;
  }

  const Place& place_;
  const TestTokens& tokens_;
  std::vector<std::shared_ptr<std::byte>> buffers_;
  std::vector<std::byte*> canaries_;
  ForwardArgs args_;
  RankOutput output_;
};

struct GuardedGroup {
  GuardedGroup(const LayerConfig& layer_config, const TestWeights& weights)
      : place(layer_config.backend), config(layer_config) {
    const auto members = make_members(layer_config.backend, 2);
    for (const auto& member : members.value()) memory.push_back(std::make_shared<GuardedMemory>(member, place));
    layers = std::make_unique<LayerGroup>(
        layer_config, std::vector<std::shared_ptr<SymmetricMemory>>(memory.begin(), memory.end()), weights);
  }

  std::vector<RankOutput> forward(const std::vector<TestTokens>& tokens) {
    std::vector<GuardedBuffers> buffers;
    for (const TestTokens& part : tokens) buffers.emplace_back(place, config, part);
    (void)on_each_rank(2, [&](uint32_t rank) {
      buffers[rank].run(layers->layer(rank));
      return Status{};
    });
    std::vector<RankOutput> outputs;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(buffers[rank].intact()) << "a user buffer of rank " << rank << " was overrun";
      EXPECT_TRUE(memory[rank]->intact()) << "the workspace of rank " << rank << " was overrun";
      outputs.push_back(buffers[rank].output());
    }
    return outputs;
  }

  Place place;
  LayerConfig config;
  std::vector<std::shared_ptr<GuardedMemory>> memory;
  std::unique_ptr<LayerGroup> layers;
};

TEST_P(CapacityLimit, OneTokenTooManyOnOneRankIsRefusedOnBoth) {
  const TestWeights weights = gen_weights(kShape, 6);
  GuardedGroup group(config(kShape, 128), weights);
  expect_all_ok(group.layers->created());
  const std::vector<TestTokens> too_many = {gen_tokens(kShape, 129, 1), gen_tokens(kShape, 4, 2)};
  expect_refused(group.forward(too_many), 0, Code::kInvalidArgument, "129 tokens > 128");
  const std::vector<TestTokens> full = {gen_tokens(kShape, 128, 1), gen_tokens(kShape, 4, 2)};
  expect_matches_oracle(weights, std::nullopt, full, group.forward(full));
}

TEST_P(CapacityLimit, OddCapacitiesCanBeFilled) {
  const TestWeights weights = tag_weights(kShape);
  for (const uint32_t capacity : {1u, 100u, 129u, 672u}) {
    GuardedGroup group(config(kShape, capacity), weights);
    expect_all_ok(group.layers->created());
    std::vector<TestTokens> tokens = {tag_tokens(kShape, capacity), tag_tokens(kShape, 1, 77)};
    for (TestTokens& part : tokens)
      for (size_t i = 0; i < part.topk_ids.size(); ++i) part.topk_ids[i] = static_cast<int64_t>((i * 5 + i / 8) % 8);
    expect_tag(kShape, tokens, group.forward(tokens));
    expect_tag(kShape, tokens, group.forward(tokens));
  }
}

TEST_P(CapacityLimit, ZeroAndUnholdableCapacitiesAreRefusedAtCreation) {
  EXPECT_EQ(MoeLayer::plan(config(kShape, 0), 2).status().code(), Code::kInvalidArgument);
  const Status rows = MoeLayer::plan(config(kShape, 4'000'000'000u), 2).status();
  EXPECT_EQ(rows.code(), Code::kInvalidArgument);
  EXPECT_NE(rows.message().find("lower max_tokens_per_rank"), std::string::npos) << rows.message();
}

}  // namespace
}  // namespace megamoe::test
