// Sizes, mappings, and the checks on a memory file that comes from another process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "comm/memfd.h"
#include "comm/region.h"

namespace megamoe::comm {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(RegionSizes, AreWholePagesAndWasteLittle) {
  EXPECT_EQ(region_sizes(1, 3).value().stride_bytes, 4096u);
  EXPECT_EQ(region_sizes(4097, 3).value().total_bytes, 3 * 8192u);
  EXPECT_EQ(region_sizes(256 * kMiB + 1, 2).value().stride_bytes, 258 * kMiB);
  for (const uint64_t bytes : {500'000 * uint64_t{1}, 255 * kMiB, 256 * kMiB + 1, 10'000 * kMiB + 7}) {
    const uint64_t stride_bytes = region_sizes(bytes, 8).value().stride_bytes;
    EXPECT_GE(stride_bytes, bytes);
    EXPECT_LE(stride_bytes, bytes + bytes / 100);
  }
}

TEST(RegionSizes, RefuseWhatNoAddressSpaceHolds) {
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX / 2, uint64_t{1} << 60})
    EXPECT_EQ(region_sizes(bytes, 72).status().code(), Code::kOutOfMemory);
}

TEST(Mapping, IsAlignedZeroedAndGoesAway) {
  const auto num_mappings = [] {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);) ++count;
    return count;
  };
  const size_t before = num_mappings();
  for (int round = 0; round < 20; ++round) {
    auto mapping = Mapping::anonymous(3 * 4096);
    ASSERT_TRUE(mapping.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping.value().base()) % (2 * kMiB), 0u);
    for (int i = 0; i < 3 * 4096; ++i) ASSERT_EQ(mapping.value().base()[i], std::byte{0});
    mapping.value().base()[round] = std::byte{1};
  }
  EXPECT_LE(num_mappings(), before + 10);  // of 20 that leak; the allocator, more so a sanitizer's, may map a few
}

TEST(MemoryFile, KeepsItsSizeForGood) {
  const auto file = create_memory_file(64 * kMiB);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(check_memory_file(file.value().get(), 64 * kMiB).ok());
  EXPECT_NE(::ftruncate(file.value().get(), 0), 0);
  EXPECT_NE(::ftruncate(file.value().get(), 65 * kMiB), 0);
  EXPECT_NE(::fcntl(file.value().get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_NE(::fcntl(file.value().get(), F_GETFD) & FD_CLOEXEC, 0);
}

Descriptor memory_file_with(uint64_t bytes, int seals) {
  Descriptor file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

std::string refusal_of(int descriptor) {
  const Status status = check_memory_file(descriptor, 8192);
  EXPECT_EQ(status.code(), status.ok() ? Code::kOk : Code::kPeerFailed);
  return status.message();
}

TEST(MemoryFile, FromElsewhereIsCheckedForKindSizeAndSeals) {
  constexpr int kBoth = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_EQ(refusal_of(memory_file_with(8192, kBoth).get()), "");
  EXPECT_THAT(refusal_of(memory_file_with(4096, kBoth).get()), HasSubstr("must have 8192 bytes, got 4096"));
  EXPECT_THAT(refusal_of(memory_file_with(12288, kBoth).get()), HasSubstr("must have 8192 bytes, got 12288"));
  EXPECT_THAT(refusal_of(memory_file_with(8192, F_SEAL_SHRINK).get()), HasSubstr("sealed against"));
  EXPECT_THAT(refusal_of(memory_file_with(8192, F_SEAL_GROW).get()), HasSubstr("sealed against"));
  EXPECT_THAT(refusal_of(memory_file_with(8192, 0).get()), HasSubstr("sealed against"));
  EXPECT_THAT(refusal_of(memory_file_with(8192, kBoth | F_SEAL_WRITE).get()), HasSubstr("must be writable"));
  const Descriptor device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(refusal_of(device.get()), HasSubstr("must be a memory file, got another kind"));
  const Descriptor disk(::open("/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  if (disk.is_open()) {
    ASSERT_EQ(::ftruncate(disk.get(), 8192), 0);
    EXPECT_NE(refusal_of(disk.get()), "");
  }
  EXPECT_THAT(refusal_of(-1), HasSubstr("must be an open file"));
}

}  // namespace
}  // namespace megamoe::comm
