// The table of E4M3, and the search in it.
#include "core/reference/formats.h"

namespace megamoe::reference {

const std::array<double, 256>& e4m3_values() {
  static const std::array<double, 256> kValues = [] {
    std::array<double, 256> table{};
    for (int code = 0; code < 256; ++code) table[code] = e4m3_from_definition(code);
    return table;
  }();
  return kValues;
}

uint8_t e4m3_nearest(double value) { return e4m3_nearest_of(e4m3_values().data(), value); }

}  // namespace megamoe::reference
