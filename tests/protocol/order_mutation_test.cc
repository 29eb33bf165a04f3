// Every memory order that is too weak must be reported by ThreadSanitizer, and the sound orders must not. Each mutant
// runs in a process of its own.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "mutants.h"
#include "order_mutants.h"

extern char** environ;

namespace megamoe::test {
namespace {

constexpr int kRaceExitCode = 66;
constexpr const char* kMutantFlag = "--mutant=";

/// @return the exit code of this program with --mutant=index; -1 where it was killed
int run_in_process(size_t index) {
  setenv("TSAN_OPTIONS", "exitcode=66 halt_on_error=1 report_bugs=1 log_path=/dev/null", 1);
  std::string program = "/proc/self/exe", flag = kMutantFlag + std::to_string(index);
  char* const arguments[] = {program.data(), flag.data(), nullptr};
  pid_t child = 0;
  if (posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ) != 0) return -1;
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(Mutation, TheSoundOrdersRunWithoutReport) { EXPECT_EQ(run_in_process(kSound), 0); }

TEST(Mutation, EveryOrderMutantIsCaught) {
  std::printf("%-34s  %s\n", "mutant", "caught by");
  for (size_t i = 0; i < kOrderMutants.size(); ++i) {
    const std::string mutant = to_string(kOrderMutants[i]);
    int code = 0, runs = 0;
    constexpr int kMaxRuns = 3;  // where threads happen to run one after the other, there is no race to see
    while (code == 0 && runs < kMaxRuns) {
      code = run_in_process(i);
      ++runs;
    }
    std::printf("%-34s  %s (run %d)\n", mutant.c_str(), code == kRaceExitCode ? "ThreadSanitizer" : "NOT CAUGHT", runs);
    std::fflush(stdout);
    EXPECT_EQ(code, kRaceExitCode) << mutant;
  }
  std::printf("%-34s  %s\n", "any signal: scope too narrow",
              "not visible on a CPU: every release reaches every thread; the machine of the GPU is where it counts");
}

}  // namespace
}  // namespace megamoe::test

int main(int argc, char** argv) {
  using namespace megamoe::test;
  if (argc > 1 && std::strncmp(argv[1], kMutantFlag, std::strlen(kMutantFlag)) == 0)
    return run_order_mutant(std::strtoull(argv[1] + std::strlen(kMutantFlag), nullptr, 10));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
