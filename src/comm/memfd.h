// The file that holds the memory of all ranks: anonymous, of fixed size, passed as a descriptor.
#pragma once

#include <cstdint>

#include "comm/descriptor.h"
#include "megamoe/status.h"

namespace megamoe::comm {

/// Zeroed, sealed against shrinking, growing and further seals.
Result<Descriptor> create_memory_file(uint64_t bytes);

/// Before a descriptor from another process is mapped: a memory file of exactly `bytes` that can never shrink or grow.
Status check_memory_file(int descriptor, uint64_t bytes);

}  // namespace megamoe::comm
