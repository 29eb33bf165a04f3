// One allocation and one copy for each tensor.
#include "api/tensor_store.h"

#include <algorithm>

#include "api/registry.h"
#include "core/tensor_extent.h"

namespace megamoe::api {

Result<TensorStore> TensorStore::create(const std::string& backend, int32_t device_index) {
  const Result<const backends::Backend*> chosen = choose_backend(backend);
  if (!chosen.ok()) return chosen.status();
  return TensorStore(chosen.value()->device_memory(), device_index);
}

Status TensorStore::place(TensorView& view) {
  if (memory_ == nullptr || !view.present()) return {};
  const core::TensorExtent extent = core::extent_of(view);
  Copy copy;
  copy.host = static_cast<std::byte*>(view.data) + extent.begin;
  copy.bytes = extent.bytes();
  Result<std::shared_ptr<std::byte>> memory = memory_->allocate(copy.bytes, device_index_);
  if (!memory.ok()) return memory.status();
  copy.memory = std::move(memory).value();
  if (copy.bytes != 0) MEGAMOE_RETURN_IF_ERROR(memory_->copy(copy.memory.get(), copy.host, copy.bytes, device_index_));
  view.data = copy.memory.get() - extent.begin;
  view.device = memory_->device();
  view.device_index = device_index_;
  copy.data = view.data;
  copies_.push_back(std::move(copy));
  return {};
}

Status TensorStore::place(std::initializer_list<TensorView*> views) {
  for (TensorView* view : views) MEGAMOE_RETURN_IF_ERROR(place(*view));
  return {};
}

Status TensorStore::fetch(const TensorView& placed) const {
  const auto copy =
      std::find_if(copies_.begin(), copies_.end(), [&](const Copy& known) { return known.data == placed.data; });
  if (copy == copies_.end() || copy->bytes == 0) return {};
  return memory_->copy(copy->host, copy->memory.get(), copy->bytes, device_index_);
}

}  // namespace megamoe::api
