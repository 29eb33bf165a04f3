// Sentences for what the protocol leaves behind: refusals and error records.
#pragma once

#include <string>
#include <vector>

#include "megamoe/status.h"
#include "protocol/rank_view.h"

namespace megamoe::backends {

/// A refusal as this rank must report it.
/// @param source  the rank that refused
Status refusal_status(const protocol::RankView& view, uint32_t source, const protocol::Refusal& refusal);

/// Packs a status into the form that travels with the header.
protocol::Refusal make_refusal(const Status& status);

/// "rank 0 (dispatch, worker 0) waited 5.0 s for header[2] of rank 2 ..." from the record that a rank left.
std::string describe(const protocol::ErrorRecord& record);

/// "2", "1 and 3", "1, 2 and 3".
std::string join_ranks(const std::vector<uint32_t>& ranks);
std::vector<uint32_t> members(const protocol::RankSet& set);

/// Why ranks that missed calls cannot take part.
/// @param ranks  as join_ranks gives them
std::string left_out_text(const std::string& ranks);

/// What a call that was cut short answers, from the abort word and the record of the rank that raised it.
/// Precondition: the abort word of this rank was acquired and is not 0.
Status abort_status(const protocol::RankView& view, uint64_t abort_word);
/// The same where the host cannot read workspaces: `record` is a copy of the one of the rank that raised it.
Status abort_status(const protocol::RankView& view, uint64_t abort_word, const protocol::ErrorRecord& record);

}  // namespace megamoe::backends
