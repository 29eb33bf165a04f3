// The list of device checks: each prints one line.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace megamoe::device_check {

/// What a check found out, in words; `passed` false makes the program fail.
struct Outcome {
  bool passed = false;
  std::string text;
};

struct Check {
  std::string name;
  std::function<Outcome()> run;
};

std::vector<Check> all_checks();
/// Those of all_checks() that go through the public interface.
std::vector<Check> layer_checks();
/// Layers of real sizes, judged by the oracle on the device.
std::vector<Check> slice_checks();
/// Late and absent ranks, chaos, other kernels, streams, graphs.
std::vector<Check> stress_checks();
/// Those with calls on streams.
std::vector<Check> stream_checks();

/// The events of one cold call of a model's layer on one rank, for each number of tokens; prints tables.
void trace(const std::string& model, const std::vector<uint32_t>& tokens);

}  // namespace megamoe::device_check
