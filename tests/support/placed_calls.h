// Calls on one layer with host tensors, wherever its backend needs them: for tests that drive ranks themselves.
#pragma once

#include <list>
#include <mutex>
#include <string>

#include "api/tensor_store.h"
#include "megamoe/moe_layer.h"
#include "support/layer_group.h"

namespace megamoe::test {

/// Must outlive the layers' use of the weights. Thread-safe.
class PlacedCalls {
 public:
  explicit PlacedCalls(std::string backend) : backend_(std::move(backend)) {}

  Status load_weights(MoeLayer& layer, ExpertWeights views) {
    api::TensorStore& placed = store();
    for (TensorView* view : views_of(views)) MEGAMOE_RETURN_IF_ERROR(placed.place(*view));
    return layer.load_weights(views);
  }

  /// Leaves the host's output alone.
  Status forward(MoeLayer& layer, ForwardArgs args) { return forward(layer, args, store()); }
  /// Brings back what the call wrote.
  Status forward_and_fetch(MoeLayer& layer, ForwardArgs args) {
    api::TensorStore& tensors = store();
    const Status status = forward(layer, args, tensors);
    const Status fetched = tensors.fetch(args.output);
    return status.ok() ? fetched : status;
  }

 private:
  static Status forward(MoeLayer& layer, ForwardArgs& args, api::TensorStore& tensors) {
    for (TensorView* view : views_of(args)) MEGAMOE_RETURN_IF_ERROR(tensors.place(*view));
    return layer.forward(args);
  }

  api::TensorStore& store() {
    const std::lock_guard lock(mutex_);
    return stores_.emplace_back(api::TensorStore::create(backend_).value());
  }

  const std::string backend_;
  std::mutex mutex_;
  std::list<api::TensorStore> stores_;
};

}  // namespace megamoe::test
