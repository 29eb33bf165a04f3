// How the memory of ranks that are processes comes about: what a member of a process group leaves to it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/channel.h"
#include "comm/meeting.h"
#include "comm/region.h"
#include "megamoe/tensor.h"

namespace megamoe::comm {

/// How a collective call ended for this rank, with the descriptors that came with it.
struct Met {
  Outcome outcome;
  std::vector<std::shared_ptr<const Descriptor>> descriptors;
};

/// One meeting of all ranks within an allocation.
struct Step {
  Collective collective = Collective::kConfirm;
  std::string what;  ///< Named in errors.
  std::string contribution;
  std::shared_ptr<const Descriptor> descriptor;  ///< With Collective::kShare.
};

/// An allocation under way, as its memory sees it.
struct Allocating {
  uint32_t rank = 0;
  std::vector<std::string> names;  ///< Of all ranks, "rank 2 (pid 4711)".
  uint64_t bytes = 0;              ///< Of each rank; all have asked for as many.
  /// From the agreement: the memory file of a group in host memory.
  std::vector<std::shared_ptr<const Descriptor>> descriptors;
  std::function<Met(Step)> meet;      ///< Ends by the deadline of the allocation.
  std::function<uint64_t()> left_ns;  ///< Until then.
  std::function<bool()> is_broken;    ///< A rank died, say: no further meeting can succeed.
};

class ProcessMemory {
 public:
  virtual ~ProcessMemory() = default;
  virtual MemoryKind kind() const = 0;
  virtual std::string_view transport() const = 0;
  virtual int32_t device_index() const { return 0; }
  /// Maps all ranks' memory. The caller undoes it with release() where this rank or another failed.
  virtual Status map(const Allocating& call) = 0;
  virtual void release() = 0;
  virtual std::vector<std::string> warnings() const { return {}; }

  virtual std::byte* base() const = 0;
  virtual RegionSizes sizes() const = 0;
};

/// One memory file, mapped by every process.
class HostProcessMemory final : public ProcessMemory {
 public:
  MemoryKind kind() const override { return MemoryKind::kHost; }
  std::string_view transport() const override { return "processes"; }
  Status map(const Allocating& call) override;
  void release() override;
  std::byte* base() const override { return mapping_.base(); }
  RegionSizes sizes() const override { return sizes_; }

 private:
  RegionSizes sizes_;
  Mapping mapping_;
};

/// Collective: one rank that failed is an error of all; the first rank's is everybody's.
Status confirm(const Allocating& call, std::string_view what, const Status& mine);

/// A status as bytes, "" where ok; and back.
std::string encode_status(const Status& status);
Status decode_status(const std::string& text);

}  // namespace megamoe::comm
