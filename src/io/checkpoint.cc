// A checkpoint folder: one model.safetensors, or shards under an index, as one set of names.
#include "io/checkpoint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "io/file.h"
#include "io/text.h"

namespace megamoe::io {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 100'000'000;

std::string join_path(const std::string& folder, std::string_view file_name) {
  return fmt::format("{}/{}", folder, file_name);
}

bool exists(const std::string& path) {
  struct stat properties {};
  return ::stat(path.c_str(), &properties) == 0;
}

std::vector<std::string> file_names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string where_of(const std::string& folder) { return fmt::format("checkpoint.open: {}", printable(folder, 1000)); }

Status no_weights(const std::string& folder) {
  struct stat properties {};
  if (::stat(folder.c_str(), &properties) != 0 || !S_ISDIR(properties.st_mode)) {
    return {Code::kBadFile,
            fmt::format("{}: must be a folder with a checkpoint, got {}; name the folder of config.json",
                        where_of(folder), exists(folder) ? "something else" : "no such folder")};
  }
  const std::vector<std::string> names = file_names_in(folder);
  return {Code::kBadFile,
          fmt::format("{}: must hold {} or {}, found {}; name the folder of a checkpoint, as Hugging Face writes it",
                      where_of(folder), kSingleFile, kIndexFile, names.empty() ? "nothing" : join_names(names))};
}

/// Every tensor of the index must be in the shard that the index names.
Status check_index(const CheckpointIndex& index, const std::vector<SafetensorsFile>& files, const std::string& folder) {
  std::vector<std::string> stale;
  for (const CheckpointIndex::Entry& entry : index.entries) {
    if (files[entry.shard_idx].find(entry.tensor_name) == nullptr) {
      stale.push_back(
          fmt::format("{} (in {})", printable(entry.tensor_name), printable(index.shards[entry.shard_idx])));
    }
  }
  if (stale.empty()) return {};
  return {Code::kBadFile,
          fmt::format("{}: the index must agree with its shards, these {} tensors are not where it says: "
                      "{}; the index is stale, copy it again",
                      where_of(folder), stale.size(), join_names(stale))};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  const std::string index_path = join_path(folder, kIndexFile);
  const bool has_single = exists(join_path(folder, kSingleFile));
  if (!exists(index_path)) {
    if (!has_single) return no_weights(folder);
    MEGAMOE_RETURN_IF_ERROR(checkpoint.open_files({std::string(kSingleFile)}));
    MEGAMOE_RETURN_IF_ERROR(checkpoint.merge_names());
    return checkpoint;
  }

  const Result<std::string> text = read_text_file(index_path, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  const Result<CheckpointIndex> index =
      parse_checkpoint_index(text.value(), fmt::format("checkpoint.index: {}", printable(index_path, 1000)));
  if (!index.ok()) return index.status();
  const std::vector<std::string>& shards = index->shards;
  if (has_single && !std::binary_search(shards.begin(), shards.end(), kSingleFile)) {
    return Status(Code::kBadFile,
                  fmt::format("{}: must hold one checkpoint, got both {} and {}, which does not name it; "
                              "remove the one that is not meant",
                              where_of(folder), kSingleFile, kIndexFile));
  }
  MEGAMOE_RETURN_IF_ERROR(checkpoint.open_files(shards));
  MEGAMOE_RETURN_IF_ERROR(check_index(index.value(), checkpoint.files_, folder));
  MEGAMOE_RETURN_IF_ERROR(checkpoint.merge_names());
  return checkpoint;
}

Status Checkpoint::open_files(const std::vector<std::string>& file_names) {
  std::vector<std::string> missing;
  for (const std::string& file_name : file_names) {
    if (!exists(join_path(folder_, file_name))) missing.push_back(file_name);
  }
  if (!missing.empty()) {
    return {
        Code::kBadFile,
        fmt::format("{}: every shard that {} names must be there, {} of {} are missing: {}; copy them, or the index "
                    "that belongs to the files",
                    where_of(folder_), kIndexFile, missing.size(), file_names.size(), join_names(missing))};
  }
  files_.reserve(file_names.size());
  for (const std::string& file_name : file_names) {
    Result<SafetensorsFile> file = SafetensorsFile::open(join_path(folder_, file_name));
    if (!file.ok()) return file.status();
    files_.push_back(std::move(file).value());
  }
  return {};
}

Status Checkpoint::merge_names() {
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& info : file.header().tensors) tensors_.push_back({&info, &file});
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.info->name < b.info->name; });
  std::vector<std::string> twice;
  for (size_t idx = 1; idx < tensors_.size(); ++idx) {
    const Tensor& first = tensors_[idx - 1];
    const Tensor& second = tensors_[idx];
    if (first.info->name != second.info->name) continue;
    const auto file_name = [](const Tensor& tensor) {
      return std::filesystem::path(tensor.file->path()).filename().string();
    };
    twice.push_back(fmt::format("{} (in {} and {})", printable(first.info->name), printable(file_name(first)),
                                printable(file_name(second))));
  }
  if (twice.empty()) return {};
  return {Code::kBadFile,
          fmt::format("{}: a tensor must be in one shard, these {} are in two: {}; remove the shard that is not meant",
                      where_of(folder_), twice.size(), join_names(twice))};
}

Checkpoint::Tensor Checkpoint::find(std::string_view tensor_name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), tensor_name,
                       [](const Tensor& tensor, std::string_view wanted) { return tensor.info->name < wanted; });
  return found != tensors_.end() && found->info->name == tensor_name ? *found : Tensor{};
}

}  // namespace megamoe::io
