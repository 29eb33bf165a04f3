// What the fuzzers call: one function per parser that reads what strangers wrote.
#pragma once

#include <cstdint>
#include <span>

namespace megamoe::fuzz {

/// Parses the bytes as a file, and again as the header of a well-framed file. Aborts where a promise of the parser is
/// broken.
void safetensors_header(std::span<const uint8_t> input);
/// Parses the bytes as model.safetensors.index.json.
void checkpoint_index(std::span<const uint8_t> input);
/// Parses the bytes as config.json, and its lines as values of a valid one.
void model_config(std::span<const uint8_t> input);
/// Reads the bytes as a number of the command line: whole, a list, real.
void cli_numbers(std::span<const uint8_t> input);

}  // namespace megamoe::fuzz
