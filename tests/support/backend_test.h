// Tests that every backend must pass: the backend's name is their parameter.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/registry.h"
#include "support/layer_group.h"

namespace megamoe::test {

/// The names of all backends in this build, also of those that this machine cannot run.
inline std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const backends::Backend* backend : api::compiled_backends()) names.emplace_back(backend->name());
  return names;
}

inline std::string backend_label(const ::testing::TestParamInfo<std::string>& info) { return info.param; }

/// Derive a suite, write TEST_P cases, and instantiate it over backend_names() with backend_label. A backend that this
/// machine cannot run is skipped with its own reason.
class BackendTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Result<const backends::Backend*> backend = api::choose_backend(GetParam());
    if (!backend.ok()) GTEST_SKIP() << backend.status().message();
  }

  /// small_config for the backend under test.
  static LayerConfig config(const MoeShape& shape, uint32_t max_tokens) {
    LayerConfig config = small_config(shape, max_tokens);
    config.backend = GetParam();
    return config;
  }

  /// A group of ranks for the backend under test.
  static std::vector<std::shared_ptr<SymmetricMemory>> members(uint32_t num_ranks) {
    return make_members(GetParam(), num_ranks).value();
  }

  /// The rows of a block that the backend under test can have, smallest first.
  static std::vector<uint32_t> block_rows() {
    return GetParam() == "cuda" ? std::vector<uint32_t>{64, 128} : std::vector<uint32_t>{8, 16, 64, 256};
  }
};

}  // namespace megamoe::test
