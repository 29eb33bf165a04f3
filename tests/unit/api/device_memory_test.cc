// Backends whose memory the host cannot read: which groups and tensors they take, without a GPU.
#include <gmock/gmock.h>

#include <cstring>
#include <limits>

#include "api/registry.h"
#include "api/validate.h"
#include "support/layer_group.h"
#include "unit/api/refusal.h"

namespace megamoe::test {
namespace {

/// Device addresses are host addresses that are moved to where nothing is mapped: reading one ends the test.
constexpr uintptr_t kMoved = uintptr_t{1} << 62;

template <class T>
T* moved(T* host) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(host) | kMoved);
}

class FakeMemory final : public backends::DeviceMemory {
 public:
  Device device() const override { return Device::kCuda; }
  int32_t num_devices() const override { return 1; }
  Result<std::shared_ptr<std::byte>> allocate(uint64_t, int32_t) const override {
    return Status{Code::kOutOfMemory, "none"};
  }
  Status copy(void* to, const void* from, uint64_t bytes, int32_t) const override {
    std::memcpy(to, reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from) & ~kMoved), bytes);
    return {};
  }
};

class FakeBackend final : public backends::Backend {
 public:
  std::string_view name() const override { return "cuda"; }
  Status available(int32_t) const override { return {}; }
  const backends::DeviceMemory* device_memory() const override { return &memory_; }
  Result<backends::BackendPlan> plan(const LayerConfig&, uint32_t) const override {
    return Status{Code::kInternal, "never asked"};
  }
  Result<std::unique_ptr<backends::BackendRank>> create(const LayerConfig&, const backends::BackendPlan&,
                                                        std::shared_ptr<SymmetricMemory>) const override {
    return Status{Code::kInternal, "never asked"};
  }

 private:
  FakeMemory memory_;
};

class DeviceTensors : public ::testing::Test {
 protected:
  static void move(TensorView& view) {
    view.data = moved(static_cast<std::byte*>(view.data));
    view.device = Device::kCuda;
  }
  ExpertWeights weights() {
    ExpertWeights views = rank_weights(weights_, 0, 1);
    for (TensorView* view : {&views.w13, &views.w13_scale, &views.w2, &views.w2_scale}) move(*view);
    return views;
  }
  Status check(const ExpertWeights& views) {
    return api::validate_weights(views, small_config(shape_, 4), 8, backend_);
  }
  ForwardArgs fp8_args() {
    ForwardArgs args = forward_args(shape_, tokens_, output_);
    args.hidden_states = TensorView::dense(quantized_.codes.data(), DType::kFloat8E4M3, {3, 256});
    args.hidden_states_scale = TensorView::dense(quantized_.scales.data(), DType::kFloat32, {3, 2});
    args.scale_format = ScaleFormat::kUe8m0;
    for (TensorView* view :
         {&args.hidden_states, &args.hidden_states_scale, &args.topk_ids, &args.topk_weights, &args.output})
      move(*view);
    return args;
  }
  Status check(const ForwardArgs& args) { return api::validate_forward(args, small_config(shape_, 4), 1, backend_); }

  const MoeShape shape_{256, 192, 8, 2};
  const FakeBackend backend_{};
  TestWeights weights_ = gen_weights(shape_, 1);
  const TestTokens tokens_ = gen_tokens(shape_, 3, 2);
  QuantizedTokens quantized_ = quantize_tokens(shape_, tokens_);
  std::vector<uint16_t> output_;
};

TEST_F(DeviceTensors, AreAcceptedWhereTheBackendNeedsThem) {
  expect_ok(check(weights()));
  for (float& scale : quantized_.scales) scale = 0.5F;
  expect_ok(check(fp8_args()));
}

TEST_F(DeviceTensors, OfTheHostAreRefused) {
  ExpertWeights views = weights();
  views.w2_scale.device = Device::kCpu;
  expect_refusal(check(views), Code::kInvalidArgument,
                 "moe_layer.load_weights: w2_scale must lie in GPU memory for the cuda backend, got a host pointer");
  ForwardArgs args = fp8_args();
  args.topk_ids.device = Device::kCpu;
  for (float& scale : quantized_.scales) scale = 0.5F;
  expect_refusal(check(args), Code::kInvalidArgument,
                 "moe_layer.forward: topk_ids must lie in GPU memory for the cuda backend, got a host pointer");
}

TEST_F(DeviceTensors, HaveTheirScalesCheckedInACopy) {
  weights_.w13_scale[5] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(check(weights()).message(), ::testing::HasSubstr("every scale of w13_scale must be finite, got inf"));
  for (float& scale : quantized_.scales) scale = 0.5F;
  quantized_.scales[3] = 0.75F;
  EXPECT_THAT(check(fp8_args()).message(),
              ::testing::HasSubstr("every scale must be a power of two, got 0.75 at [1, 1]"));
  ForwardArgs reversed = fp8_args();  // group-major, rows from last to first
  reversed.hidden_states_scale.data = moved(quantized_.scales.data() + 2);
  reversed.hidden_states_scale.strides = {-1, 3};
  EXPECT_THAT(check(reversed).message(), ::testing::HasSubstr("got 0.75 at [2, 1]"));
}

/// Says that its memory is a GPU's; nothing may be allocated in these tests.
class GpuGroup final : public SymmetricMemory {
 public:
  explicit GpuGroup(std::shared_ptr<SymmetricMemory> inner) : inner_(std::move(inner)) {}
  uint32_t rank() const override { return inner_->rank(); }
  uint32_t num_ranks() const override { return inner_->num_ranks(); }
  std::string_view transport() const override { return "pretended"; }
  Device device() const override { return Device::kCuda; }
  std::string describe(uint32_t rank) const override { return inner_->describe(rank); }
  Status allocate(uint64_t, uint64_t) override {
    ADD_FAILURE() << "nothing may be allocated";
    return {Code::kInternal, "allocated"};
  }
  Status release(uint64_t timeout_ns) override { return inner_->release(timeout_ns); }
  std::byte* base() const override { return nullptr; }
  uint64_t stride_bytes() const override { return 0; }
  uint64_t allocated_bytes() const override { return 0; }
  Result<std::vector<std::string>> all_gather(std::string_view mine, std::string_view what,
                                              uint64_t timeout_ns) override {
    return inner_->all_gather(mine, what, timeout_ns);
  }

 private:
  std::shared_ptr<SymmetricMemory> inner_;
};

std::vector<Status> create_on(const std::string& backend, bool on_gpu) {
  const auto members = make_thread_group(2);
  LayerConfig config = small_config({256, 128, 8, 2}, 4);
  config.backend = backend;
  return on_each_rank(2, [&](uint32_t rank) {
    std::shared_ptr<SymmetricMemory> member = members.value()[rank];
    if (on_gpu) member = std::make_shared<GpuGroup>(member);
    return MoeLayer::create(config, member).status();
  });
}

TEST(GroupMemory, ChoosesTheBackendOfAuto) {
  const auto members = make_thread_group(1);
  const auto host = api::choose_backend("auto", *members.value()[0]);
  ASSERT_TRUE(host.ok()) << host.status().message();
  EXPECT_EQ(host.value()->name(), "cpu");
  const auto gpu = api::choose_backend("auto", GpuGroup(members.value()[0]));
  if (gpu.ok()) {
    EXPECT_EQ(gpu.value()->name(), "cuda");
  } else {
    EXPECT_EQ(gpu.status().code(), Code::kNotSupported);
    EXPECT_THAT(gpu.status().message(), ::testing::HasSubstr("backend cuda needs"));
  }
}

TEST(GroupMemory, RefusesABackendThatDoesNotFitOnEveryRank) {
  for (const Status& status : create_on("cpu", true)) {
    expect_refusal(status, Code::kInvalidArgument,
                   "moe_layer.create: backend cpu needs a group with memory of the host, got transport \"pretended\" "
                   "with memory on a GPU; use make_thread_group or join_process_group, or backend cuda");
  }
  const bool has_cuda = api::find_backend("cuda").ok();
  for (const Status& status : create_on("cuda", false)) {
    EXPECT_EQ(status.code(), has_cuda ? Code::kInvalidArgument : Code::kNotSupported);
    EXPECT_THAT(status.message(),
                ::testing::HasSubstr(has_cuda ? "backend cuda needs a group with memory on a GPU, got transport "
                                                "\"threads\" with memory of the host; use make_cuda_thread_group"
                                              : "backend cuda needs a build with CUDA, got one without"));
  }
}

TEST(GroupMemory, OfAGpuIsMadeOrTheReasonIsGiven) {
  const auto members = make_cuda_thread_group(2);
  if (!members.ok()) {
    EXPECT_EQ(members.status().code(), Code::kNotSupported);
    EXPECT_THAT(members.status().message(), ::testing::HasSubstr("make_cuda_thread_group: memory on a GPU needs"));
    return;
  }
  EXPECT_EQ(members.value()[1]->device(), Device::kCuda);
  EXPECT_EQ(make_cuda_thread_group(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(make_cuda_thread_group(1, -1).status().code(), Code::kInvalidArgument);
}

TEST(PlanOfCuda, NeedsNoGpu) {
  LayerConfig config = small_config({4096, 2048, 32, 6}, 64);
  config.backend = "cuda";
  const auto plan = MoeLayer::plan(config, 4);
  if (!api::find_backend("cuda").ok()) {
    EXPECT_EQ(plan.status().code(), Code::kNotSupported);
    return;
  }
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan.value().backend, "cuda");
  EXPECT_GT(plan.value().workspace_bytes, 0u);
}

}  // namespace
}  // namespace megamoe::test
