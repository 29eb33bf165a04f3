// The names of status codes.
#include "megamoe/status.h"

namespace megamoe {

std::string_view name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kNotSupported:
      return "not_supported";
    case Code::kBadFile:
      return "bad_file";
    case Code::kOutOfMemory:
      return "out_of_memory";
    case Code::kTimeout:
      return "timeout";
    case Code::kPeerFailed:
      return "peer_failed";
    case Code::kPoisoned:
      return "poisoned";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace megamoe
