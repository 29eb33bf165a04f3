// Copies of host tensors where a backend needs them: for programs that hold their tensors in host memory.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::backends {
class DeviceMemory;
}

namespace megamoe::api {

/// With a backend that works in host memory nothing is copied and every view stays as it is.
class TensorStore {
 public:
  /// @param backend  a backend's name, or "auto"
  /// @param device_index  the GPU of the rank that the tensors are for, where the backend works on GPUs
  /// Errors: those of choose_backend.
  static Result<TensorStore> create(const std::string& backend, int32_t device_index = 0);

  /// Copies the elements to where the backend needs them and makes `view` one of the copy, with the same strides. The
  /// copy lives as long as this. An absent view stays absent.
  Status place(TensorView& view);
  /// Stops at the first view that cannot be placed.
  Status place(std::initializer_list<TensorView*> views);
  /// Brings the elements of a placed view back to the host memory that they came from.
  Status fetch(const TensorView& placed) const;

 private:
  struct Copy {
    std::shared_ptr<std::byte> memory;
    std::byte* host = nullptr;
    uint64_t bytes = 0;
    const void* data = nullptr;  ///< Of the placed view.
  };

  TensorStore(const backends::DeviceMemory* memory, int32_t device_index)
      : memory_(memory), device_index_(device_index) {}

  const backends::DeviceMemory* memory_;
  int32_t device_index_;
  std::vector<Copy> copies_;
};

}  // namespace megamoe::api
