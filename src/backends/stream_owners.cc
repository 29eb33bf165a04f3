// One entry a layer and stream: the newest call on it.
#include "backends/stream_owners.h"

namespace megamoe::backends {

StreamOwners& StreamOwners::instance() {
  static StreamOwners owners;
  return owners;
}

std::optional<uint32_t> StreamOwners::claim(const void* layer, uint64_t stream_id, uint32_t rank, uint64_t call) {
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = owners_.try_emplace({layer, stream_id}, Owner{rank, call});
  Owner& owner = entry->second;
  if (!is_new && owner.rank != rank && owner.call == call) return owner.rank;
  owner = {rank, call};
  return std::nullopt;
}

void StreamOwners::forget(const void* layer, uint32_t rank) {
  const std::lock_guard lock(mutex_);
  std::erase_if(owners_, [&](const auto& entry) { return entry.first.first == layer && entry.second.rank == rank; });
}

}  // namespace megamoe::backends
