// What the files of the C interface share: error texts, versioned structs, views.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "megamoe/megamoe.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::capi {

/// Of the last failed call on this thread.
std::string& last_error();

/// Keeps the sentence of a failure and gives its code.
megamoe_code answer(const Status& status);

Status null_argument(const char* function, const char* what);

/// A view with impossible numbers becomes one that validation refuses by name.
TensorView view(const megamoe_tensor& tensor);
megamoe_tensor tensor(const TensorView& view);

/// Runs `body`; an exception (memory, for one) becomes a status.
template <class Body>
Status guarded(const char* function, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return {Code::kOutOfMemory, fmt::format("{}: the process is out of memory", function)};
  } catch (const std::exception& error) {
    return {Code::kInternal, fmt::format("{}: unexpected: {}", function, error.what())};
  } catch (...) {
    return {Code::kInternal, fmt::format("{}: unexpected exception", function)};
  }
}

template <class T>
Status check_struct_bytes(const char* function, const T* given) {
  if (given == nullptr) return null_argument(function, "the struct");
  const uint32_t bytes = given->struct_bytes;
  if (bytes >= sizeof(uint32_t) && bytes <= 4096) return {};
  return {Code::kInvalidArgument,
          fmt::format("{}: struct_bytes must be the size of the struct ({} here), got {}", function, sizeof(T), bytes)};
}

/// Copies a versioned struct: a shorter one gets zeros, a longer one may only carry zeros where this library ends.
template <class T>
Status read_struct(const char* function, const T* given, T& known) {
  MEGAMOE_RETURN_IF_ERROR(check_struct_bytes(function, given));
  const uint32_t bytes = given->struct_bytes;
  known = {};
  const auto* raw = reinterpret_cast<const char*>(given);
  std::memcpy(static_cast<void*>(&known), raw, std::min<size_t>(bytes, sizeof(T)));
  if (std::any_of(raw + std::min<size_t>(bytes, sizeof(T)), raw + bytes, [](char c) { return c != 0; }))
    return {Code::kNotSupported,
            fmt::format("{}: the struct has fields that this library (version {}) does not know; update it", function,
                        MEGAMOE_VERSION)};
  return {};
}

/// Fills the caller's versioned struct: a shorter one gets its part, a longer one zeros where this library ends.
template <class T>
Status write_struct(const char* function, const T& known, T* given) {
  MEGAMOE_RETURN_IF_ERROR(check_struct_bytes(function, given));
  const uint32_t bytes = given->struct_bytes;
  auto* const raw = reinterpret_cast<char*>(given);
  std::memset(raw, 0, bytes);
  std::memcpy(raw, &known, std::min<size_t>(bytes, sizeof(T)));
  given->struct_bytes = bytes;
  return {};
}

}  // namespace megamoe::capi
