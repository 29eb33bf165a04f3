// One sink for the process, guarded by a mutex: messages are rare (creation, failures), never per call.
#include "api/log.h"

#include <mutex>
#include <utility>

namespace megamoe::api {
namespace {

std::mutex& sink_mutex() {
  static std::mutex mutex;
  return mutex;
}

LogSink& sink() {
  static LogSink instance;
  return instance;
}

}  // namespace

void set_log_sink(LogSink new_sink) {
  const std::lock_guard lock(sink_mutex());
  sink() = std::move(new_sink);
}

void log(LogLevel level, std::string_view message) {
  const std::lock_guard lock(sink_mutex());
  if (sink()) sink()(level, message);
}

}  // namespace megamoe::api
