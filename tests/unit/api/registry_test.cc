// Which backend a name gets, and what the environment may say.
#include <gmock/gmock.h>
#include <stdlib.h>

#include "api/options.h"
#include "api/registry.h"
#include "support/layer_group.h"
#include "unit/api/refusal.h"

namespace megamoe::test {
namespace {

/// Sets a variable and gives the old value back.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name), before_(api::environment_value(name)) {
    ::setenv(name, value, 1);
  }
  ~ScopedVariable() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(Registry, KnowsTheCpuAndListsItForUnknownNames) {
  const Result<const backends::Backend*> cpu = api::choose_backend("cpu");
  ASSERT_TRUE(cpu.ok()) << cpu.status().message();
  EXPECT_EQ(cpu.value()->name(), "cpu");
  EXPECT_TRUE(api::choose_backend("auto").ok());
  const Status unknown = api::choose_backend("tpu").status();
  EXPECT_EQ(unknown.code(), Code::kInvalidArgument);
  EXPECT_THAT(unknown.message(), ::testing::HasSubstr("backend must be one of auto, "));
  EXPECT_THAT(unknown.message(), ::testing::HasSubstr("cpu"));
  EXPECT_THAT(unknown.message(), ::testing::HasSubstr("got \"tpu\""));
}

TEST(Registry, EveryBackendRunsOrSaysWhyNot) {
  for (const backends::Backend* backend : api::compiled_backends()) {
    const Result<const backends::Backend*> chosen = api::choose_backend(std::string(backend->name()));
    EXPECT_EQ(chosen.ok(), backend->available().ok());
    if (!chosen.ok()) {
      EXPECT_EQ(chosen.status().code(), Code::kNotSupported);
      EXPECT_FALSE(chosen.status().message().empty());
    }
  }
}

TEST(Registry, CudaIsNeverRunAsSomethingElse) {
  const Result<const backends::Backend*> cuda = api::choose_backend("cuda");
  if (cuda.ok()) {
    EXPECT_EQ(cuda.value()->name(), "cuda");
  } else {
    EXPECT_EQ(cuda.status().code(), Code::kNotSupported) << cuda.status().message();
  }
}

TEST(Environment, ForcesTheBackendOfAuto) {
  {
    const ScopedVariable backend("MEGAMOE_BACKEND", "cpu");
    const Result<const backends::Backend*> chosen = api::choose_backend("auto");
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(chosen.value()->name(), "cpu");
  }
  const ScopedVariable backend("MEGAMOE_BACKEND", "abacus");
  EXPECT_EQ(api::choose_backend("auto").status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(api::choose_backend("cpu").ok()) << "a named backend does not ask the environment";
}

TEST(Environment, WithASenselessSimdLevelIsRefusedByName) {
  {
    const ScopedVariable simd("MEGAMOE_SIMD", "quantum");
    const Status status = MoeLayer::plan(small_config({256, 128, 8, 2}, 8), 2).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("MEGAMOE_SIMD"));
    EXPECT_THAT(status.message(), ::testing::HasSubstr("quantum"));
  }
  const ScopedVariable simd("MEGAMOE_SIMD", "auto");
  expect_ok(MoeLayer::plan(small_config({256, 128, 8, 2}, 8), 2).status());
}

TEST(Environment, OptionsAreAllDescribed) {
  for (const api::EnvironmentOption& option : api::environment_options()) {
    EXPECT_THAT(option.name, ::testing::StartsWith("MEGAMOE_"));
    EXPECT_THAT(option.meaning, ::testing::EndsWith("."));
    EXPECT_STRNE(option.values, "");
    EXPECT_STRNE(option.default_value, "");
  }
}

}  // namespace
}  // namespace megamoe::test
