// megamoe_device_check: everything that needs a GPU, one line a check.
//   megamoe_device_check list | run [=NAME | ^GROUP | part of a name ...] | trace MODEL TOKENS ...
// trace: MEGAMOE_TRACE_FOLDER names a folder for every line of it. Times are measured by `megamoe bench --device cuda`.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/checks.h"

namespace {

using namespace megamoe::device_check;

bool chosen(const Check& check, int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string wanted = argv[i];
    const std::string rest = wanted.substr(1);
    if (wanted[0] == '=' && check.name == rest) return true;
    if (wanted[0] == '^' && (check.name == rest || check.name.starts_with(rest + "."))) return true;
    if (wanted[0] != '=' && wanted[0] != '^' && check.name.find(wanted) != std::string::npos) return true;
  }
  return argc <= 2;
}

int run_checks(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const Check& check : all_checks()) {
    if (!chosen(check, argc, argv)) continue;
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = check.run();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%s %s: %s (%.1f s)\n", outcome.passed ? "ok  " : "FAIL", check.name.c_str(), outcome.text.c_str(),
                seconds);
    std::fflush(stdout);
    ++(outcome.passed ? passed : failed);
  }
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc >= 2 && std::strcmp(argv[1], "list") == 0) {
    for (const Check& check : all_checks()) std::printf("%s\n", check.name.c_str());
    return 0;
  }
  if (argc >= 2 && std::strcmp(argv[1], "run") == 0) return run_checks(argc, argv);
  if (argc >= 4 && std::strcmp(argv[1], "trace") == 0) {
    std::vector<uint32_t> tokens;
    for (int i = 3; i < argc; ++i) tokens.push_back(static_cast<uint32_t>(std::atoi(argv[i])));
    trace(argv[2], tokens);
    return 0;
  }
  std::printf("usage: %s list | run [=NAME | ^GROUP | part of a name ...] | trace MODEL TOKENS ...\n", argv[0]);
  return 2;
}
