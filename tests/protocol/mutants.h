// The list of mutants, and who must catch each.
#pragma once

#include <array>

#include "mutation.h"

namespace megamoe::test {

/// Wrong logic: the exploration must find a schedule in which it shows.
inline constexpr std::array kLogicMutants{
    Mutation{Break::kDropped, Signal::kHeader},
    Mutation{Break::kDropped, Signal::kInputFull},
    Mutation{Break::kDropped, Signal::kExpertDone},
    Mutation{Break::kDropped, Signal::kPlanReady},
    Mutation{Break::kDropped, Signal::kTokensFull},
    Mutation{Break::kDropped, Signal::kActsFull},
    Mutation{Break::kDropped, Signal::kActsEmpty},
    Mutation{Break::kDropped, Signal::kExpertBlocksDone},
    Mutation{Break::kDropped, Signal::kTileTicket},
    Mutation{Break::kDropped, Signal::kInputTicket},
    Mutation{Break::kDropped, Signal::kCombineTicket},
    Mutation{Break::kDropped, Signal::kErrorClaim},
    Mutation{Break::kDropped, Signal::kAbort},
    Mutation{Break::kDoubled, Signal::kTokensFull},
    Mutation{Break::kDoubled, Signal::kActsFull},
    Mutation{Break::kDoubled, Signal::kActsEmpty},
    Mutation{Break::kDoubled, Signal::kExpertBlocksDone},
    Mutation{Break::kDoubled, Signal::kTileTicket},
    Mutation{Break::kDoubled, Signal::kInputTicket},
    Mutation{Break::kDoubled, Signal::kCombineTicket},
    Mutation{Break::kSeenEarly, Signal::kTokensFull},
    Mutation{Break::kSeenEarly, Signal::kActsFull},
    Mutation{Break::kSeenEarly, Signal::kActsEmpty},
    Mutation{Break::kSeenEarly, Signal::kExpertBlocksDone},
    Mutation{Break::kNoWait, Signal::kHeader},
    Mutation{Break::kNoWait, Signal::kInputFull},
    Mutation{Break::kNoWait, Signal::kExpertDone},
    Mutation{Break::kNoWait, Signal::kPlanReady},
    Mutation{Break::kNoWait, Signal::kTokensFull},
    Mutation{Break::kNoWait, Signal::kActsFull},
    Mutation{Break::kNoRingWait, Signal::kActsFull},
    Mutation{Break::kNoWait, Signal::kActsEmpty},
    Mutation{Break::kOtherBank, Signal::kHeader},
    Mutation{Break::kOtherBank, Signal::kTokensFull},
    Mutation{Break::kOtherBank, Signal::kActsFull},
    Mutation{Break::kOtherBank, Signal::kActsEmpty},
    Mutation{Break::kOtherBank, Signal::kInputTicket},
    Mutation{Break::kNotCleaned, Signal::kHeader},
    Mutation{Break::kNotCleaned, Signal::kTokensFull},
    Mutation{Break::kNotCleaned, Signal::kActsFull},
    Mutation{Break::kNotCleaned, Signal::kActsEmpty},
    Mutation{Break::kNotCleaned, Signal::kExpertBlocksDone},
    Mutation{Break::kNotCleaned, Signal::kTileTicket},
    Mutation{Break::kNotCleaned, Signal::kInputTicket},
    Mutation{Break::kNotCleaned, Signal::kCombineTicket},
    Mutation{Break::kFlagBeforeData, Signal::kHeader},
    Mutation{Break::kFlagBeforeData, Signal::kInputFull},
    Mutation{Break::kFlagBeforeData, Signal::kTokensFull},
    Mutation{Break::kFlagBeforeData, Signal::kActsFull},
    Mutation{Break::kFlagBeforeData, Signal::kActsEmpty},
};

/// Wrong memory order: invisible on most processors, so ThreadSanitizer must report it. Tickets and error_claim are
/// relaxed in the sound protocol already.
inline constexpr std::array kOrderMutants{
    Mutation{Break::kReleaseRelaxed, Signal::kHeader},
    Mutation{Break::kReleaseRelaxed, Signal::kInputFull},
    Mutation{Break::kReleaseRelaxed, Signal::kExpertDone},
    Mutation{Break::kReleaseRelaxed, Signal::kPlanReady},
    Mutation{Break::kReleaseRelaxed, Signal::kTokensFull},
    Mutation{Break::kReleaseRelaxed, Signal::kActsFull},
    Mutation{Break::kReleaseRelaxed, Signal::kActsEmpty},
    Mutation{Break::kReleaseRelaxed, Signal::kExpertBlocksDone},
    Mutation{Break::kReleaseRelaxed, Signal::kAbort},
    Mutation{Break::kAcquireRelaxed, Signal::kHeader},
    Mutation{Break::kAcquireRelaxed, Signal::kInputFull},
    Mutation{Break::kAcquireRelaxed, Signal::kExpertDone},
    Mutation{Break::kAcquireRelaxed, Signal::kPlanReady},
    Mutation{Break::kAcquireRelaxed, Signal::kTokensFull},
    Mutation{Break::kAcquireRelaxed, Signal::kActsFull},
    Mutation{Break::kAcquireRelaxed, Signal::kActsEmpty},
    Mutation{Break::kAcquireRelaxed, Signal::kExpertBlocksDone},
    Mutation{Break::kAcquireRelaxed, Signal::kAbort},
};

}  // namespace megamoe::test
