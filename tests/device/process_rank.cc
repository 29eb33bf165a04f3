// One rank of a group of processes on GPUs.
#include "device/process_rank.h"

#include <cuda_runtime_api.h>

#include "backends/sm90/backend.h"
#include "backends/sm90/driver.h"
#include "support/layer_group.h"

namespace megamoe::device_check {

LayerConfig Job::config() const {
  LayerConfig config = test::small_config(shape, tokens_per_rank);
  config.backend = "cuda";
  config.timeout_ns = timeout_ns;
  return config;
}

Status ProcessRank::join() {
  const int32_t gpu = job_.gpus[rank_ % job_.gpus.size()];
  auto group = join_cuda_process_group({rank_, job_.num_ranks, "check", job_.folder, job_.timeout_ns}, gpu);
  if (!group.ok()) return group.status();
  group_ = group.value();
  auto store = api::TensorStore::create("cuda", gpu);
  if (!store.ok()) return store.status();
  store_ = std::move(store).value();
  weights_ = job_.weights();
  tokens_ = test::split_tokens(job_.shape, job_.tokens(), job_.num_ranks)[rank_];
  weight_views_ = test::rank_weights(weights_, rank_, job_.num_ranks);
  args_ = test::forward_args(job_.shape, tokens_, output_);
  ExpertWeights& w = weight_views_;
  MEGAMOE_RETURN_IF_ERROR(store_->place({&w.w13, &w.w13_scale, &w.w2, &w.w2_scale}));
  return store_->place({&args_.hidden_states, &args_.topk_ids, &args_.topk_weights, &args_.output});
}

Status ProcessRank::open_layer() {
  auto layer = MoeLayer::create(job_.config(), group_);
  if (!layer.ok()) return layer.status();
  layer_ = std::move(layer).value();
  return layer_->load_weights(weight_views_);
}

Status ProcessRank::open_kernel(const sm90::KernelInstance& instance) {
  const auto plan = sm90::plan_sm90(job_.config(), job_.num_ranks, &instance);
  if (!plan.ok()) return plan.status();
  const uint64_t bytes = protocol::Workspace::plan(plan.value().workspace).bytes;
  MEGAMOE_RETURN_IF_ERROR(group_->allocate(bytes, job_.timeout_ns));
  auto rank = sm90::Sm90Rank::create(job_.config(), plan.value(), instance, group_);
  if (!rank.ok()) return rank.status();
  kernel_ = std::move(rank).value();
  return kernel_->load_weights(weight_views_);
}

std::string ProcessRank::rows() {
  const Status status = store_->fetch(args_.output);
  if (!status.ok()) return status.message();
  return {reinterpret_cast<const char*>(output_.data()), output_.size() * sizeof(uint16_t)};
}

Status ProcessRank::poison() {
  const sm90::CurrentDevice current(group_->device_index());
  const cudaError_t error = cudaMemset(args_.output.data, 0xff, output_.size() * sizeof(uint16_t));
  return error == cudaSuccess ? Status{} : Status{Code::kInternal, cudaGetErrorName(error)};
}

}  // namespace megamoe::device_check
