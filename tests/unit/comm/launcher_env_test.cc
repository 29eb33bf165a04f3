// What process_group_from_environment() makes of each set of variables, whole, partial and malformed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "megamoe/process_group.h"

namespace megamoe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Environment = std::vector<std::pair<std::string, std::string>>;

const Environment kTorchrun{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}};
const Environment kMpirun{{"OMPI_COMM_WORLD_RANK", "2"},
                          {"OMPI_COMM_WORLD_SIZE", "3"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};

class LauncherEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static void clear() {
    for (const Environment& set : {kTorchrun, kMpirun})
      for (const auto& [name, value] : set) ::unsetenv(name.c_str());
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                             "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MEGAMOE_RENDEZVOUS"})
      ::unsetenv(name);
  }

  static Result<ProcessGroupOptions> read(const Environment& environment, const Environment& more = {}) {
    clear();
    for (const Environment& set : {environment, more})
      for (const auto& [name, value] : set) ::setenv(name.c_str(), value.c_str(), 1);
    return process_group_from_environment();
  }

  static std::string name_of(const Environment& environment, const Environment& more) {
    const auto options = read(environment, more);
    EXPECT_TRUE(options.ok()) << options.status().message();
    return options.ok() ? options.value().name : "";
  }
};

TEST_F(LauncherEnvironment, EachLauncherNamesTheRank) {
  const auto torchrun = read(kTorchrun);
  ASSERT_TRUE(torchrun.ok());
  EXPECT_EQ(torchrun.value().rank, 1u);
  EXPECT_EQ(torchrun.value().num_ranks, 4u);
  EXPECT_EQ(torchrun.value().rendezvous_dir, "");
  const auto mpirun = read(kMpirun, {{"MEGAMOE_RENDEZVOUS", "/somewhere"}});
  ASSERT_TRUE(mpirun.ok());
  EXPECT_EQ(mpirun.value().rank, 2u);
  EXPECT_EQ(mpirun.value().num_ranks, 3u);
  EXPECT_EQ(mpirun.value().rendezvous_dir, "/somewhere");
  EXPECT_EQ(read(kMpirun, kTorchrun).value().num_ranks, 4u) << "torchrun's variables come first";
  Environment without_local_size = kMpirun;
  without_local_size.pop_back();
  EXPECT_EQ(read(without_local_size).value().rank, 2u);
}

TEST_F(LauncherEnvironment, NoLauncherIsItsOwnAnswer) {
  EXPECT_EQ(read({}).status().code(), Code::kNotSupported);
  EXPECT_EQ(read({}, {{"MASTER_PORT", "1"}}).status().code(), Code::kNotSupported);
}

TEST_F(LauncherEnvironment, APartOfTheVariablesIsRefusedWithWhatIsMissing) {
  for (size_t missing = 0; missing < 4; ++missing) {
    Environment part = kTorchrun;
    part.erase(part.begin() + static_cast<ptrdiff_t>(missing));
    const Status status = read(part, kMpirun).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(kTorchrun[missing].first + " is missing"));
  }
  EXPECT_THAT(read({{"RANK", "0"}}).status().message(),
              HasSubstr("WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE is missing"));
  for (size_t missing = 0; missing < 3; ++missing) {
    Environment part = kMpirun;
    part.erase(part.begin() + static_cast<ptrdiff_t>(missing));
    EXPECT_THAT(read(part).status().message(), HasSubstr(kMpirun[missing].first + " is missing"));
  }
}

TEST_F(LauncherEnvironment, MalformedNumbersAreRefusedWithTheirText) {
  for (const char* text : {"", " 1", "1 ", "+1", "-1", "0x1", "1.0", "one", "4294967296", "99999999999999999999"})
    for (size_t i = 0; i < 4; ++i) {
      for (Environment set : {kTorchrun, kMpirun}) {
        set[i].second = text;
        const Status status = read(set).status();
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        EXPECT_THAT(status.message(), AllOf(HasSubstr(set[i].first), HasSubstr(fmt::format("got '{}'", text))));
      }
    }
  for (const char* text : {"", "port", "65536", "-1"})
    EXPECT_THAT(read(kTorchrun, {{"MASTER_PORT", text}}).status().message(), HasSubstr("MASTER_PORT must be"));
  const std::string hostile =
      read(kTorchrun, {{"MASTER_PORT", "\x1b[31m" + std::string(1000, 'x')}}).status().message();
  EXPECT_EQ(hostile.find('\x1b'), std::string::npos);
  EXPECT_LT(hostile.size(), 300u);
}

TEST_F(LauncherEnvironment, RanksThatContradictEachOtherAreRefused) {
  const auto changed = [](size_t index, const char* value) {
    Environment set = kTorchrun;
    set[index].second = value;
    return read(set).status();
  };
  EXPECT_THAT(changed(0, "4").message(), HasSubstr("RANK must be below WORLD_SIZE 4, got 4"));
  EXPECT_THAT(changed(1, "0").message(), HasSubstr("WORLD_SIZE must be 1 to 72, got 0"));
  EXPECT_THAT(changed(1, "73").message(), HasSubstr("WORLD_SIZE must be 1 to 72, got 73"));
  EXPECT_THAT(changed(2, "0").message(), HasSubstr("LOCAL_RANK must equal RANK"));
  EXPECT_EQ(changed(3, "2").code(), Code::kNotSupported);
  EXPECT_THAT(changed(3, "2").message(), HasSubstr("WORLD_SIZE must equal LOCAL_WORLD_SIZE"));
  EXPECT_THAT(read(kTorchrun, {{"MEGAMOE_RENDEZVOUS", "here"}}).status().message(),
              HasSubstr("MEGAMOE_RENDEZVOUS must be an absolute path, got 'here'"));
}

TEST_F(LauncherEnvironment, GroupsThatDifferInAnyVariableHaveDifferentNames) {
  const std::vector<std::string> names{name_of(kTorchrun, {}),
                                       name_of(kMpirun, {}),
                                       name_of(kTorchrun, {{"MASTER_PORT", "1"}}),
                                       name_of(kTorchrun, {{"MASTER_PORT", "2"}}),
                                       name_of(kTorchrun, {{"MASTER_PORT", "1"}, {"MASTER_ADDR", "a"}}),
                                       name_of(kTorchrun, {{"MASTER_PORT", "1"}, {"TORCHELASTIC_RUN_ID", "a"}}),
                                       name_of(kTorchrun, {{"MASTER_PORT", "1"}, {"TORCHELASTIC_RESTART_COUNT", "1"}}),
                                       name_of(kMpirun, {{"PMIX_NAMESPACE", "1"}}),
                                       name_of(kMpirun, {{"PMIX_NAMESPACE", "2"}}),
                                       name_of(kMpirun, {{"OMPI_MCA_ess_base_jobid", "2"}})};
  for (size_t i = 0; i < names.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(names[i], names[j]) << i << " " << j;
  Environment other_rank = kTorchrun;
  other_rank[0].second = other_rank[2].second = "3";
  EXPECT_EQ(name_of(other_rank, {{"MASTER_PORT", "1"}}), names[2]);
  EXPECT_EQ(name_of(other_rank, {}), names[0]);
}

}  // namespace
}  // namespace megamoe
