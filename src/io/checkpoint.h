// A checkpoint folder: one model.safetensors, or shards under model.safetensors.index.json, as one set of names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "megamoe/status.h"

namespace megamoe::io {

/// What model.safetensors.index.json says.
struct CheckpointIndex {
  struct Entry {
    std::string tensor_name;
    uint32_t shard_idx = 0;  ///< Into `shards`.
  };
  std::vector<std::string> shards;  ///< File names, distinct, sorted.
  std::vector<Entry> entries;       ///< Sorted by name, distinct.
};

/// Parses an index. Refused (kBadFile): no `weight_map`, duplicate keys, values that are not strings, shard names that
/// are empty, absolute, hold '/' or are "." or "..".
Result<CheckpointIndex> parse_checkpoint_index(std::string_view text, std::string_view where);

/// All tensors of a folder. Opening reads every header and no data.
class Checkpoint {
 public:
  /// Refused (kBadFile), with the names listed: missing shards, tensors that the index places in a shard that lacks
  /// them, one name in two shards, an index beside an unrelated model.safetensors.
  static Result<Checkpoint> open(const std::string& folder);

  struct Tensor {
    const TensorInfo* info = nullptr;
    const SafetensorsFile* file = nullptr;
  };

  const std::string& folder() const { return folder_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// Sorted by name.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// `info` is null where no tensor has this name.
  Tensor find(std::string_view tensor_name) const;

 private:
  Status open_files(const std::vector<std::string>& file_names);
  Status merge_names();

  std::string folder_;
  std::vector<SafetensorsFile> files_;  ///< Filled once; `tensors_` points into it.
  std::vector<Tensor> tensors_;
};

}  // namespace megamoe::io
