// Which rank of a group last called on which stream: ranks of one process that call on the same stream would wait for
// ever, the second kernel for the first to end, the first for the second's data.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace megamoe::backends {

class StreamOwners {
 public:
  /// Of this process.
  static StreamOwners& instance();

  /// Notes that a rank enqueues its call number `call` of a group's layer on a stream.
  /// @param layer      what all ranks of the layer have in common
  /// @param stream_id  as cudaStreamGetId gives it
  /// @return the rank that enqueued the same call there, if any; then nothing is noted
  std::optional<uint32_t> claim(const void* layer, uint64_t stream_id, uint32_t rank, uint64_t call);
  /// Forgets what a rank of the layer has noted.
  void forget(const void* layer, uint32_t rank);

 private:
  struct Owner {
    uint32_t rank;
    uint64_t call;
  };
  std::mutex mutex_;
  std::map<std::pair<const void*, uint64_t>, Owner> owners_;
};

}  // namespace megamoe::backends
