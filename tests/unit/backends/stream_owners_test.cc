// Ranks that enqueue one call on one stream are found; ranks that use a stream one after the other are not.
#include "backends/stream_owners.h"

#include <gtest/gtest.h>

namespace megamoe::backends {
namespace {

constexpr uint64_t kStream = 7;

TEST(StreamOwners, FindsTheRankThatEnqueuedTheSameCall) {
  StreamOwners owners;
  const int layer = 0;
  EXPECT_EQ(owners.claim(&layer, kStream, 3, 1), std::nullopt);
  EXPECT_EQ(owners.claim(&layer, kStream, 1, 1), 3u);
  EXPECT_EQ(owners.claim(&layer, kStream, 2, 1), 3u) << "a rank that was refused must not take the stream";
}

TEST(StreamOwners, LetsRanksTakeTurns) {
  StreamOwners owners;
  const int layer = 0;
  EXPECT_EQ(owners.claim(&layer, kStream, 0, 1), std::nullopt);
  EXPECT_EQ(owners.claim(&layer, kStream + 1, 1, 1), std::nullopt);
  EXPECT_EQ(owners.claim(&layer, kStream, 1, 2), std::nullopt) << "rank 0's call on it is an older one";
  EXPECT_EQ(owners.claim(&layer, kStream, 1, 3), std::nullopt);
}

TEST(StreamOwners, KeepsLayersApart) {
  StreamOwners owners;
  const int layers[2] = {};
  EXPECT_EQ(owners.claim(&layers[0], kStream, 0, 1), std::nullopt);
  EXPECT_EQ(owners.claim(&layers[1], kStream, 1, 1), std::nullopt);
}

TEST(StreamOwners, ForgetsARankThatIsGone) {
  StreamOwners owners;
  const int layer = 0;
  EXPECT_EQ(owners.claim(&layer, kStream, 0, 1), std::nullopt);
  owners.forget(&layer, 1);
  EXPECT_EQ(owners.claim(&layer, kStream, 1, 1), 0u);
  owners.forget(&layer, 0);
  EXPECT_EQ(owners.claim(&layer, kStream, 1, 1), std::nullopt);
}

}  // namespace
}  // namespace megamoe::backends
