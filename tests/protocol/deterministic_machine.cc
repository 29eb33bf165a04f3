// Every operation: a step of the scheduler, then the access, broken where the mutation says so.
#include "deterministic_machine.h"

#include <cstring>
#include <limits>

#include "protocol/roles/clean.h"
#include "protocol/roles/dispatch.h"

namespace megamoe::test {
namespace {

using protocol::Region;

/// Calls visit(region) with the cells of a signal that live in two banks.
template <class Visit>
void visit_banked(const protocol::Workspace& w, Signal signal, Visit&& visit) {
  switch (signal) {
    case Signal::kHeader:
      return visit(w.header);
    case Signal::kTokensFull:
      return visit(w.tokens_full);
    case Signal::kActsFull:
      return visit(w.acts_full);
    case Signal::kActsEmpty:
      return visit(w.acts_empty);
    case Signal::kExpertBlocksDone:
      return visit(w.expert_blocks_done);
    case Signal::kTileTicket:
    case Signal::kInputTicket:
    case Signal::kCombineTicket:
      return visit(w.tickets);
    default:
      return;
  }
}

/// The cell with the same index in the other bank.
template <class T>
T* other_bank(const protocol::RankView& view, Signal signal, T* cell) {
  T* other = cell;
  visit_banked(view.layout, signal, [&](auto region) {
    if constexpr (std::is_same_v<decltype(region), Region<T>>) {
      const auto index = static_cast<uint64_t>(cell - region.in(view.own()));
      other = index < region.count / 2 ? cell + region.count / 2 : cell - region.count / 2;
    }
  });
  return other;
}

struct CellRange {
  uint64_t first;
  uint64_t end;
};
/// Which cells of a bank belong to the signal: the tickets share a region.
CellRange cells_of(Signal signal, uint64_t cells_per_bank) {
  switch (signal) {
    case Signal::kTileTicket:
      return {protocol::kTileTicketIndex, protocol::kTileTicketIndex + 1};
    case Signal::kInputTicket:
      return {protocol::kInputTicketIndex, protocol::kInputTicketIndex + 1};
    case Signal::kCombineTicket:
      return {protocol::kCombineTicketIndex, protocol::kCombineTicketIndex + 1};
    default:
      return {0, cells_per_bank};
  }
}

/// The clean role, leaving out the cells of one signal.
void clean_all_but(const protocol::RankView& view, const protocol::Call& call, Signal left_out) {
  visit_banked(view.layout, left_out, [&](auto region) {
    if constexpr (std::is_same_v<decltype(region), Region<uint32_t>>) {
      const uint64_t per_bank = region.count / 2;
      uint32_t* idle = region.in(view.own()) + (call.bank() ^ 1) * per_bank;
      const auto [first, end] = cells_of(left_out, per_bank);
      const std::vector<uint32_t> before(idle + first, idle + end);
      protocol::clean_idle_bank(view, call);
      std::memcpy(idle + first, before.data(), before.size() * sizeof(uint32_t));
    }
  });
}

}  // namespace

template <class T>
void MachineCore::store_word(Signal signal, T* word, T value) {
  scheduler_->step();
  if (!breaks(Break::kDropped, signal)) *word = value;
  scheduler_->changed();
  write_held_back(signal);
}
template void MachineCore::store_word(Signal, uint32_t*, uint32_t);
template void MachineCore::store_word(Signal, uint64_t*, uint64_t);

template <class T>
T MachineCore::load_word(Signal signal, T* word) {
  if (breaks(Break::kOtherBank, signal)) word = other_bank(*view_, signal, word);
  scheduler_->step();
  scheduler_->look(protocol::name(signal), offset_of(word));  // a deadlock shows the offset in its workspace
  const T value = *word;
  check_bound(signal, value);
  if (breaks(Break::kSeenEarly, signal)) return value + 1;
  const bool for_ring = signal == Signal::kActsFull && role_ == protocol::Role::kDispatch;
  return breaks(for_ring ? Break::kNoRingWait : Break::kNoWait, signal) ? static_cast<T>(awaited(signal)) : value;
}
template uint32_t MachineCore::load_word(Signal, uint32_t*);
template uint64_t MachineCore::load_word(Signal, uint64_t*);

uint32_t MachineCore::add(Signal signal, uint32_t* word, uint32_t amount) {
  if (breaks(Break::kOtherBank, signal)) word = other_bank(*view_, signal, word);
  scheduler_->step();
  const uint32_t before = *word;
  check_bound(signal, before);
  if (breaks(Break::kDoubled, signal)) amount *= 2;
  if (!breaks(Break::kDropped, signal)) *word = before + amount;
  check_bound(signal, *word);
  scheduler_->changed();
  write_held_back(signal);
  return before + (breaks(Break::kSeenEarly, signal) ? 1 : 0);
}

void MachineCore::copy(void* to, const void* from, uint64_t num_bytes) {
  scheduler_->step();
  if (mutation_.kind == Break::kFlagBeforeData && is_announced_by(mutation_.signal, to)) {
    const auto* bytes = static_cast<const char*>(from);
    held_back_.push_back({to, std::vector<char>(bytes, bytes + num_bytes)});
    return;
  }
  std::memcpy(to, from, num_bytes);
}

void MachineCore::clean_idle_bank(const protocol::RankView& view, const protocol::Call& call) {
  scheduler_->step();
  if (mutation_.kind == Break::kNotCleaned && mutation_.signal != Signal::kHeader) {
    clean_all_but(view, call, mutation_.signal);
  } else {
    protocol::clean_idle_bank(view, call);
  }
}

void MachineCore::clear_absent_ranges(const protocol::RankView& view, const protocol::Call& call) {
  scheduler_->step();
  if (!breaks(Break::kNotCleaned, Signal::kHeader)) protocol::clear_absent_ranges(view, call);
}

uint64_t MachineCore::awaited(Signal signal) const {
  switch (signal) {
    case Signal::kHeader:
      return protocol::header_value(epoch_, 0);
    case Signal::kTokensFull:
    case Signal::kActsFull:
    case Signal::kActsEmpty:
      return std::numeric_limits<uint32_t>::max();
    default:
      return epoch_;
  }
}

void MachineCore::check_bound(Signal signal, uint64_t value) {
  uint64_t bound = std::numeric_limits<uint64_t>::max();
  if (signal == Signal::kTokensFull) bound = view_->spec.room_m();
  if (signal == Signal::kActsFull) bound = view_->schedule.num_l1_tiles;
  if (signal == Signal::kActsEmpty) bound = view_->schedule.num_l2_tiles;
  if (signal == Signal::kExpertBlocksDone) bound = view_->spec.max_blocks();
  if (value > bound)
    scheduler_->fail(std::string("counter ") + protocol::name(signal) + " holds " + std::to_string(value) +
                     ", more than " + std::to_string(bound));
}

uint64_t MachineCore::offset_of(const void* address) const {
  return static_cast<uint64_t>(static_cast<const char*>(address) - view_->flat_base) % view_->stride_bytes;
}

bool MachineCore::is_announced_by(Signal signal, const void* to) const {
  const uint64_t offset = offset_of(to);
  const auto inside = [&](const auto& region) {
    return region.offset <= offset && offset < region.offset + region.bytes();
  };
  const protocol::Workspace& w = view_->layout;
  switch (signal) {
    case Signal::kHeader:
      return inside(w.slot_ranges) || inside(w.refusal);
    case Signal::kInputFull:
      return inside(w.input_codes);
    case Signal::kTokensFull:
      return inside(w.pool_codes);
    case Signal::kActsFull:
      return inside(w.act_codes);
    case Signal::kActsEmpty:
      return inside(w.combine_rows);
    default:
      return false;
  }
}

void MachineCore::write_held_back(Signal signal) {
  if (!breaks(Break::kFlagBeforeData, signal) || held_back_.empty()) return;
  scheduler_->step();
  for (const HeldBack& copy : held_back_) std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
  held_back_.clear();
}

}  // namespace megamoe::test
