// The library's only voice besides its answers: a callback that the program sets. Silent by default.
#pragma once

#include <functional>
#include <string_view>

namespace megamoe::api {

enum class LogLevel : int { kInfo = 0, kWarning = 1 };
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// An empty sink ends the calls: on return none is running.
void set_log_sink(LogSink sink);
void log(LogLevel level, std::string_view message);

}  // namespace megamoe::api
