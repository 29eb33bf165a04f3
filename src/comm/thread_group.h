// The state that the ranks of a thread group share: where they meet, and the one mapping that holds their memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "comm/meeting.h"
#include "comm/region.h"

namespace megamoe::comm {

class ThreadGroup {
 public:
  explicit ThreadGroup(uint32_t num_ranks) : num_ranks_(num_ranks), meeting_(num_ranks) {}

  uint32_t num_ranks() const { return num_ranks_; }

  /// Blocks until all ranks have come, or until the call has failed. The last rank to come runs `complete` while the
  /// others wait; its status becomes everybody's.
  Outcome meet(Arrival arrival, const std::function<Status(const Outcome&)>& complete);
  void leave(uint32_t rank);

  /// For `complete` functions, and for ranks after a successful call.
  Status map_memory(const Outcome& outcome);
  Status unmap_memory();
  std::byte* base() const { return mapping_.base(); }
  uint64_t stride_bytes() const { return sizes_.stride_bytes; }

 private:
  struct Round {
    bool ended = false;
    Outcome outcome;
  };

  void end_round(Outcome outcome);

  const uint32_t num_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Meeting meeting_;
  std::shared_ptr<Round> round_ = std::make_shared<Round>();
  RegionSizes sizes_;
  Mapping mapping_;
};

}  // namespace megamoe::comm
