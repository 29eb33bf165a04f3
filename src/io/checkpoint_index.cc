// model.safetensors.index.json: which shard holds which tensor.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "io/checkpoint.h"
#include "io/json.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

constexpr size_t kMaxShards = 65536;
constexpr size_t kMaxEntries = size_t{1} << 22;
constexpr size_t kMaxShardNameBytes = 255;

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxShardNameBytes || name == "." || name == "..") return false;
  return std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20; });
}

/// Keeps `weight_map` and skips everything else at the top.
class IndexVisitor final : public JsonVisitor {
 public:
  IndexVisitor(std::string_view where, CheckpointIndex& index) : where_(where), index_(index) {}

  bool has_weight_map() const { return has_weight_map_; }
  std::map<std::string, uint32_t>& shard_numbers() { return shard_numbers_; }

  Status begin_object() override {
    ++depth_;
    if (depth_ == 2 && at_weight_map_) {
      has_weight_map_ = true;
      return {};
    }
    return in_weight_map() ? wrong_value("an object") : Status();
  }

  Status end_object() override {
    --depth_;
    return {};
  }

  Status key(std::string& text) override {
    if (depth_ == 1) at_weight_map_ = text == "weight_map";
    if (in_weight_map()) tensor_name_ = std::move(text);
    return {};
  }

  Status begin_array() override {
    ++depth_;
    if (depth_ == 1) return bad("the index must be a JSON object, got an array");
    return at_weight_map_ ? wrong_value("an array") : Status();
  }

  Status end_array() override {
    --depth_;
    return {};
  }

  Status string(std::string& text) override {
    if (!in_weight_map()) return scalar("a string");
    if (!is_plain_file_name(text)) {
      return bad(
          fmt::format("a shard must be the name of a file in the same folder (no '/', not '..'), got \"{}\" for "
                      "tensor \"{}\"",
                      printable(text), printable(tensor_name_)));
    }
    const uint32_t next = static_cast<uint32_t>(shard_numbers_.size());
    const auto [shard, is_new] = shard_numbers_.emplace(std::move(text), next);
    if (shard_numbers_.size() > kMaxShards || index_.entries.size() >= kMaxEntries) {
      return bad(fmt::format("an index must have at most {} shards and {} tensors, got more", kMaxShards, kMaxEntries));
    }
    index_.entries.push_back({std::move(tensor_name_), shard->second});
    return {};
  }

  Status number(const JsonNumber& /*number*/) override { return scalar("a number"); }
  Status boolean(bool /*value*/) override { return scalar("a boolean"); }
  Status null() override { return scalar("null"); }

 private:
  bool in_weight_map() const { return at_weight_map_ && depth_ >= 2; }

  Status bad(const std::string& sentence) const { return {Code::kBadFile, fmt::format("{}: {}", where_, sentence)}; }

  Status wrong_value(std::string_view what) const {
    if (!has_weight_map_) return bad(fmt::format("weight_map must be an object of strings, got {}", what));
    return bad(fmt::format("the shard of tensor \"{}\" must be a string, got {}", printable(tensor_name_), what));
  }

  Status scalar(std::string_view what) const {
    if (depth_ == 0) return bad(fmt::format("the index must be a JSON object, got {}", what));
    return at_weight_map_ ? wrong_value(what) : Status();
  }

  std::string_view where_;
  CheckpointIndex& index_;
  std::map<std::string, uint32_t> shard_numbers_;
  std::string tensor_name_;
  uint32_t depth_ = 0;
  bool at_weight_map_ = false;  ///< The value of the top-level key that is being read.
  bool has_weight_map_ = false;
};

}  // namespace

Result<CheckpointIndex> parse_checkpoint_index(std::string_view text, std::string_view where) {
  CheckpointIndex index;
  IndexVisitor visitor(where, index);
  MEGAMOE_RETURN_IF_ERROR(parse_json(text, where, visitor));
  if (!visitor.has_weight_map() || index.entries.empty()) {
    return Status(Code::kBadFile, fmt::format("{}: weight_map must map tensor names to shards, got {}", where,
                                              visitor.has_weight_map() ? "an empty object" : "no such key"));
  }
  // The map is sorted, its numbers are in order of appearance: renumber so that `shards` is sorted.
  std::vector<uint32_t> sorted_idx(visitor.shard_numbers().size());
  for (auto& [shard_name, number] : visitor.shard_numbers()) {
    sorted_idx[number] = static_cast<uint32_t>(index.shards.size());
    index.shards.push_back(shard_name);
  }
  for (CheckpointIndex::Entry& entry : index.entries) entry.shard_idx = sorted_idx[entry.shard_idx];
  std::sort(
      index.entries.begin(), index.entries.end(),
      [](const CheckpointIndex::Entry& a, const CheckpointIndex::Entry& b) { return a.tensor_name < b.tensor_name; });
  return index;
}

}  // namespace megamoe::io
