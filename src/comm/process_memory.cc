// Host memory of processes, and how ranks tell each other whether they could go on.
#include "comm/process_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "comm/memfd.h"

namespace megamoe::comm {

std::string encode_status(const Status& status) {
  return status.ok() ? "" : fmt::format("{} {}", static_cast<unsigned>(status.code()), status.message());
}

Status decode_status(const std::string& text) {
  if (text.empty()) return {};
  unsigned code = static_cast<unsigned>(Code::kInternal);
  const auto end = std::from_chars(text.data(), text.data() + text.size(), code).ptr;
  if (code == 0 || code > static_cast<unsigned>(Code::kInternal)) code = static_cast<unsigned>(Code::kInternal);
  const size_t begin = std::min<size_t>(static_cast<size_t>(end - text.data()) + 1, text.size());
  return {static_cast<Code>(code), text.substr(begin)};
}

Status confirm(const Allocating& call, std::string_view what, const Status& mine) {
  const Met met = call.meet({Collective::kConfirm, std::string(what), encode_status(mine), nullptr});
  Status status = met.outcome.status;
  for (const std::string& contribution : met.outcome.contributions)
    if (status.ok()) status = decode_status(contribution);
  return status;
}

Status HostProcessMemory::map(const Allocating& call) {
  const Status mine = [&]() -> Status {
    const Result<RegionSizes> sizes = region_sizes(call.bytes, static_cast<uint32_t>(call.names.size()));
    if (!sizes.ok()) return sizes.status();
    if (call.descriptors.size() != 1)
      return {Code::kPeerFailed,
              fmt::format("symmetric_memory.allocate: rank 0 must send one descriptor, got {}; run the "
                          "same megamoe on all ranks",
                          call.descriptors.size())};
    const int descriptor = call.descriptors.front()->get();
    MEGAMOE_RETURN_IF_ERROR(check_memory_file(descriptor, sizes.value().total_bytes));
    Result<Mapping> mapping = Mapping::shared(descriptor, sizes.value().total_bytes);
    if (!mapping.ok()) return mapping.status();
    mapping_ = std::move(mapping).value();
    sizes_ = sizes.value();
    return {};
  }();
  return confirm(call, "mapping of memory", mine);
}

void HostProcessMemory::release() {
  mapping_.reset();
  sizes_ = {};
}

}  // namespace megamoe::comm
