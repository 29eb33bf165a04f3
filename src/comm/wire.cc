// Both directions of each message; every value that is read is checked before it is used.
#include "comm/wire.h"

namespace megamoe::comm {

std::string encode(const WireArrival& wire) {
  const Arrival& a = wire.arrival;
  Encoder encoder;
  encoder.number(wire.version).number(wire.num_ranks).number(static_cast<uint64_t>(wire.memory));
  encoder.number(a.rank).number(static_cast<uint64_t>(a.collective));
  encoder.text(a.what).text(a.contribution).number(a.contribution_bytes).number(a.timeout_ns).number(a.spent_ns);
  return encoder.take();
}

bool decode(std::string_view bytes, WireArrival& wire) {
  Decoder decoder(bytes);
  wire.version = decoder.number();
  wire.num_ranks = decoder.number();
  const uint64_t memory = decoder.number();
  const uint64_t rank = decoder.number();
  const uint64_t collective = decoder.number();
  wire.arrival.what = decoder.text();
  wire.arrival.contribution = decoder.text();
  wire.arrival.contribution_bytes = decoder.number();
  wire.arrival.timeout_ns = decoder.number();
  wire.arrival.spent_ns = decoder.number();
  if (rank > UINT32_MAX || collective > static_cast<uint64_t>(Collective::kAllGather) ||
      memory > static_cast<uint64_t>(MemoryKind::kGpu))
    return false;
  wire.memory = static_cast<MemoryKind>(memory);
  wire.arrival.rank = static_cast<uint32_t>(rank);
  wire.arrival.collective = static_cast<Collective>(collective);
  return decoder.is_complete();
}

std::string encode(const Outcome& outcome) {
  Encoder encoder;
  encoder.number(static_cast<uint64_t>(outcome.status.code())).text(outcome.status.message());
  encoder.number(outcome.contributions.size());
  for (const std::string& contribution : outcome.contributions) encoder.text(contribution);
  return encoder.take();
}

bool decode(std::string_view bytes, uint32_t num_ranks, Outcome& outcome) {
  Decoder decoder(bytes);
  const uint64_t code = decoder.number();
  std::string message = decoder.text();
  const uint64_t num_contributions = decoder.number();
  if (code > static_cast<uint64_t>(Code::kInternal) || num_contributions > num_ranks) return false;
  if (code == 0 && num_contributions != num_ranks) return false;
  outcome.status = Status{static_cast<Code>(code), std::move(message)};
  for (uint64_t i = 0; i < num_contributions; ++i) outcome.contributions.push_back(decoder.text());
  return decoder.is_complete();
}

}  // namespace megamoe::comm
