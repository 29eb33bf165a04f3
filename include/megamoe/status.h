// What a call answers: a code for programs, a sentence for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace megamoe {

/// Why a call did not do what was asked. The library never prints, aborts or throws across its public interface.
enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument,  ///< A value, shape, dtype or layout is wrong; nothing was started.
  kNotSupported,     ///< Well formed, but this build or backend cannot do it.
  kBadFile,          ///< A file is missing, truncated, malformed or contradicts another.
  kOutOfMemory,      ///< The bytes needed are in the message.
  kTimeout,          ///< A wait reached its deadline; the message names rank, role, signal and the missing ranks.
  kPeerFailed,       ///< Another rank refused the call, failed or died; the message repeats its reason.
  kPoisoned,         ///< An earlier call failed half way; call reset() on every rank first.
  kInternal,         ///< A bug in this library.
};

/// The code's name as it appears in messages and JSON, for example "invalid_argument".
std::string_view name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  /// "where: what must hold, why, value got; what to do"; empty when ok.
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

/// A value or the status that explains its absence.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor): return value;
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor): return status;

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  /// Precondition: ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace megamoe

/// Returns from the enclosing function when `expression` is a Status that is not ok.
#define MEGAMOE_RETURN_IF_ERROR(expression)                                      \
  do {                                                                           \
    if (::megamoe::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
