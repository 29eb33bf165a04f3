// CPU ranks on a machine whose one signal has too weak a memory order, for ThreadSanitizer to find.
#pragma once

#include <cstddef>

namespace megamoe::test {

/// Runs calls on the sound machine (index kSound) or on a mutant; ThreadSanitizer ends the process where it sees a
/// race.
/// @param index  into kOrderMutants
/// @return the exit code of the process: 0 where nothing was wrong
int run_order_mutant(size_t index);
inline constexpr size_t kSound = ~size_t{0};

}  // namespace megamoe::test
