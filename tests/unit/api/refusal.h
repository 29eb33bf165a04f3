// Expecting a refusal with its exact sentence.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "megamoe/status.h"

namespace megamoe::test {

inline void expect_refusal(const Status& status, Code code, const std::string& sentence) {
  EXPECT_EQ(name(status.code()), name(code)) << status.message();
  EXPECT_EQ(status.message(), sentence);
}

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

}  // namespace megamoe::test
