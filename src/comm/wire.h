// What the messages of a process group say, as bytes: fixed-width integers and counted texts of one host.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "comm/meeting.h"

namespace megamoe::comm {

inline constexpr uint32_t kWireVersion = 2;
inline constexpr uint64_t kMessageSlackBytes = uint64_t{64} << 10;  // Above the contributions of one message.

class Encoder {
 public:
  Encoder& number(uint64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Encoder& text(std::string_view value) {
    number(value.size());
    bytes_.append(value);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads zeros and empty texts past the end; ok() tells.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}

  uint64_t number() {
    uint64_t value = 0;
    const std::string_view bytes = take(sizeof(value));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  std::string text() { return std::string(take(number())); }
  /// All was there, and nothing is left.
  bool is_complete() const { return ok_ && rest_.empty(); }
  bool ok() const { return ok_; }

 private:
  std::string_view take(uint64_t count) {
    ok_ = ok_ && count <= rest_.size();
    if (!ok_) return {};
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
};

/// A rank's arrival, with what distinguishes its build and group.
struct WireArrival {
  uint64_t version = kWireVersion;
  uint64_t num_ranks = 0;
  MemoryKind memory = MemoryKind::kHost;
  Arrival arrival;
};

std::string encode(const WireArrival& arrival);
bool decode(std::string_view bytes, WireArrival& arrival);
std::string encode(const Outcome& outcome);
bool decode(std::string_view bytes, uint32_t num_ranks, Outcome& outcome);

}  // namespace megamoe::comm
