// Sentences for what the protocol leaves behind.
#include "backends/error_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace megamoe::backends {

protocol::Refusal make_refusal(const Status& status) {
  protocol::Refusal refusal;
  if (status.ok()) return refusal;
  refusal.kind = protocol::RefusalKind::kText;
  refusal.code = static_cast<uint32_t>(status.code());
  const size_t length = std::min(status.message().size(), sizeof(refusal.text) - 1);
  std::memcpy(refusal.text, status.message().data(), length);
  return refusal;
}

Status refusal_status(const protocol::RankView& view, uint32_t source, const protocol::Refusal& refusal) {
  std::string reason;
  auto code = static_cast<Code>(refusal.code);
  if (refusal.kind == protocol::RefusalKind::kIdOutOfRange) {
    code = Code::kInvalidArgument;
    reason = fmt::format(
        "moe_layer.forward: topk_ids must be -1 (masked) or an expert in [0, {}), got {} at rank {}, token {}, slot "
        "{}; mask "
        "padding with -1",
        refusal.limit, refusal.value, source, refusal.token, refusal.slot);
  } else if (refusal.kind == protocol::RefusalKind::kMapOutOfRange) {
    code = Code::kInvalidArgument;
    reason = fmt::format(
        "moe_layer.forward: expert_map must hold physical experts in [0, {}) or -1, got {} for copy {} of logical "
        "expert {} at rank {}; end an expert's copies with -1",
        refusal.limit, refusal.value, refusal.slot, refusal.token, source);
  } else {
    reason = std::string(refusal.text, strnlen(refusal.text, sizeof(refusal.text)));
  }
  if (source == view.rank) return {code, reason};
  return {Code::kPeerFailed,
          fmt::format("moe_layer.forward: rank {} refused the call, so no rank ran it: {}", source, reason)};
}

std::vector<uint32_t> members(const protocol::RankSet& set) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < kMaxRanks; ++rank)
    if (set.contains(rank)) ranks.push_back(rank);
  return ranks;
}

std::string join_ranks(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string describe(const protocol::ErrorRecord& record) {
  const std::vector<uint32_t> missing = members(record.missing);
  if (record.signal == protocol::Signal::kAbort)
    return fmt::format("rank {} learned that rank {} has died", record.rank, join_ranks(missing));
  std::string who = missing.empty() ? fmt::format("its own {}", protocol::info(record.signal).released_by)
                                    : fmt::format("rank{} {}", missing.size() > 1 ? "s" : "", join_ranks(missing));
  return fmt::format(
      "rank {} ({}, worker {}) waited {:.1f} s in call {} for signal {}[{}] from {} (expected {}, saw {})", record.rank,
      protocol::name(record.role), record.worker, static_cast<double>(record.waited_ns) * 1e-9, record.epoch,
      protocol::name(record.signal), record.index, who, record.expected, record.seen);
}

std::string left_out_text(const std::string& ranks) {
  return fmt::format(
      "moe_layer.forward: active_ranks may only lose ranks until reset(), since a rank that misses a call does not "
      "know "
      "which call comes next, got rank {} back; call reset() on every rank first",
      ranks);
}

Status abort_status(const protocol::RankView& view, uint64_t abort_word) {
  return abort_status(view, abort_word, *view.layout.error_record.in(view.base(protocol::abort_rank(abort_word))));
}

Status abort_status(const protocol::RankView& view, uint64_t abort_word, const protocol::ErrorRecord& record) {
  const uint32_t origin = protocol::abort_rank(abort_word);
  if (record.valid == protocol::kRecordLeftOut && record.missing.contains(view.rank))
    return {Code::kPeerFailed, left_out_text(join_ranks({view.rank}))};
  const bool own = origin == view.rank && record.signal != protocol::Signal::kAbort;
  const std::string what = record.valid != 0 ? describe(record) : fmt::format("rank {} gave up", origin);
  return {
      own ? Code::kTimeout : Code::kPeerFailed,
      fmt::format("moe_layer.forward: every rank must take part in every call before its deadline: {}; the layer is "
                  "poisoned: call reset() on every rank, or raise the timeout if the rank was only slow",
                  what)};
}

}  // namespace megamoe::backends
