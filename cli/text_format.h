// How times, bytes, counts and shapes are written.
#pragma once

#include <cstdint>
#include <string>

#include "cli/json_writer.h"
#include "megamoe/shape.h"

namespace megamoe::cli {

/// "12.3 us", "4.56 ms", "7.89 s".
std::string duration_text(uint64_t ns);

/// "512 B", "1.50 KiB", "6.00 GiB".
std::string bytes_text(uint64_t bytes);

/// "1 rank", "4 ranks".
std::string counted(uint64_t count, const char* noun);

/// {"hidden": ..., "intermediate": ..., "num_experts": ..., "top_k": ...}
void write_shape(JsonWriter& json, const MoeShape& shape);

}  // namespace megamoe::cli
