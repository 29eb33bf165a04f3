// Random numbers by name: the same seed, stream and item give the same number on any number of ranks and threads.
#pragma once

#include <cstdint>

namespace megamoe::cli {

inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

/// What a stream of random numbers is for; streams never meet.
enum class Stream : uint64_t { kW13 = 1, kW13Scale, kW2, kW2Scale, kHidden, kIds, kTopkWeights };

/// The finaliser of SplitMix64: a bijection whose output bits all depend on all input bits.
inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline uint64_t stream_key(uint64_t seed, Stream stream, uint64_t item) {
  return mix(mix(mix(seed + kGolden) + static_cast<uint64_t>(stream) * kGolden) + item * kGolden);
}

/// In (0, 1), from the upper bits.
inline double unit(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

}  // namespace megamoe::cli
