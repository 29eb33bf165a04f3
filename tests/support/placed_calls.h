// Calls on one layer with host tensors, wherever its backend needs them: for tests that drive ranks themselves.
#pragma once

#include <list>
#include <mutex>
#include <string>

#include "api/tensor_store.h"
#include "megamoe/moe_layer.h"

namespace megamoe::test {

/// Must outlive the layers' use of the weights. Thread-safe.
class PlacedCalls {
 public:
  explicit PlacedCalls(std::string backend) : backend_(std::move(backend)) {}

  Status load_weights(MoeLayer& layer, ExpertWeights views) {
    const Status placed = store().place({&views.w13, &views.w13_scale, &views.w2, &views.w2_scale});
    return placed.ok() ? layer.load_weights(views) : placed;
  }

  /// Leaves the host's output alone.
  Status forward(MoeLayer& layer, ForwardArgs args) {
    const Status placed = store().place(
        {&args.hidden_states, &args.hidden_states_scale, &args.topk_ids, &args.topk_weights, &args.output});
    return placed.ok() ? layer.forward(args) : placed;
  }

 private:
  api::TensorStore& store() {
    const std::lock_guard lock(mutex_);
    return stores_.emplace_back(api::TensorStore::create(backend_).value());
  }

  const std::string backend_;
  std::mutex mutex_;
  std::list<api::TensorStore> stores_;
};

}  // namespace megamoe::test
