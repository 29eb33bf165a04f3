// A checkpoint folder: shards, their index and how the two may disagree.
#include "io/checkpoint.h"

#include "io_test_util.h"

namespace megamoe::io {
namespace {

using test::TempDir;

constexpr const char* kIndexName = "model.safetensors.index.json";

StoredTensors tensors(const std::vector<std::string>& names) {
  StoredTensors stored_tensors;
  for (const std::string& name : names) stored_tensors[name] = stored<uint8_t>(FileDType::kUInt8, {1}, {1});
  return stored_tensors;
}

std::string index_text(const std::map<std::string, std::string>& weight_map) {
  std::string text = R"({"metadata":{"total_size":3,"nested":[{"weight_map":1}]},"weight_map":{)";
  bool first = true;
  for (const auto& [name, shard] : weight_map)
    text += (std::exchange(first, false) ? "\"" : ",\"") + name + "\":\"" + shard + "\"";
  return text + "}}";
}

/// a in shard 1, b and c in shard 2.
void write_two_shards(const TempDir& dir) {
  ASSERT_TRUE(write_tensors(dir.file("s1.safetensors"), tensors({"a"})).ok());
  ASSERT_TRUE(write_tensors(dir.file("s2.safetensors"), tensors({"b", "c"})).ok());
  dir.write(kIndexName, index_text({{"a", "s1.safetensors"}, {"b", "s2.safetensors"}, {"c", "s2.safetensors"}}));
}

Status open_status(const TempDir& dir) { return Checkpoint::open(dir.path()).status(); }

TEST(Checkpoint, ReadsASingleFile) {
  const TempDir dir;
  ASSERT_TRUE(write_tensors(dir.file("model.safetensors"), tensors({"a", "b"})).ok());
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_NE(checkpoint->find("a").info, nullptr);
  EXPECT_EQ(checkpoint->find("c").info, nullptr);
}

TEST(Checkpoint, ReadsShards) {
  const TempDir dir;
  write_two_shards(dir);
  auto opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Checkpoint checkpoint = std::move(opened).value();  // Pointers survive a move.
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(checkpoint.find("b").file->path(), dir.path() + "/s2.safetensors");
}

TEST(Checkpoint, ListsMissingShards) {
  const TempDir dir;
  write_two_shards(dir);
  std::filesystem::remove(dir.file("s2.safetensors"));
  expect_error(open_status(dir), Code::kBadFile, {"1 of 2 are missing", "s2.safetensors"});
  std::filesystem::create_symlink("gone", dir.file("s2.safetensors"));
  expect_error(open_status(dir), Code::kBadFile, {"1 of 2 are missing", "s2.safetensors"});
}

TEST(Checkpoint, ListsTensorsThatTheIndexMisplaces) {
  const TempDir dir;
  write_two_shards(dir);
  dir.write(kIndexName, index_text({{"a", "s1.safetensors"}, {"b", "s1.safetensors"}, {"d", "s2.safetensors"}}));
  expect_error(open_status(dir), Code::kBadFile,
               {"2 tensors", "b (in s1.safetensors)", "d (in s2.safetensors)", "stale"});
}

TEST(Checkpoint, ListsTensorsInTwoShards) {
  const TempDir dir;
  write_two_shards(dir);
  ASSERT_TRUE(write_tensors(dir.file("s1.safetensors"), tensors({"a", "b"})).ok());
  expect_error(open_status(dir), Code::kBadFile, {"b (in s1.safetensors and s2.safetensors)"});
}

TEST(Checkpoint, RefusesTwoCheckpointsInOneFolder) {
  const TempDir dir;
  write_two_shards(dir);
  ASSERT_TRUE(write_tensors(dir.file("model.safetensors"), tensors({"a"})).ok());
  expect_error(open_status(dir), Code::kBadFile, {"one checkpoint", "model.safetensors"});
  dir.write(kIndexName, index_text({{"a", "model.safetensors"}}));
  EXPECT_TRUE(open_status(dir).ok());
}

TEST(Checkpoint, SaysWhatAFolderHolds) {
  const TempDir dir;
  expect_error(open_status(dir), Code::kBadFile, {"model.safetensors", "found nothing"});
  dir.write("pytorch_model.bin", "x");
  expect_error(open_status(dir), Code::kBadFile, {"found pytorch_model.bin"});
  expect_error(Checkpoint::open(dir.file("none")).status(), Code::kBadFile, {"no such folder"});
  expect_error(Checkpoint::open(dir.file("pytorch_model.bin")).status(), Code::kBadFile, {"must be a folder"});
}

TEST(Checkpoint, TruncatedShardIsNamed) {
  const TempDir dir;
  write_two_shards(dir);
  std::filesystem::resize_file(dir.file("s2.safetensors"), std::filesystem::file_size(dir.file("s2.safetensors")) - 1);
  expect_error(open_status(dir), Code::kBadFile, {"s2.safetensors", "1 bytes are missing"});
}

TEST(CheckpointIndex, SortsShardsAndTensors) {
  const auto index = parse_checkpoint_index(R"({"weight_map":{"z":"b","a":"c","m":"a"}})", "here");
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_EQ(index->shards, (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_EQ(index->entries.size(), 3u);
  EXPECT_EQ(index->entries[0].tensor_name, "a");
  EXPECT_EQ(index->shards[index->entries[0].shard_idx], "c");
  EXPECT_EQ(index->shards[index->entries[1].shard_idx], "a");
  EXPECT_EQ(index->shards[index->entries[2].shard_idx], "b");
}

TEST(CheckpointIndex, ShardNamesStayInTheFolder) {
  for (const std::string shard :
       {"../x.safetensors", "/etc/passwd", "a/b", "..", ".", "", "a\\u0000b", "\\u000a", "\\u002e\\u002e", "x\\/y"}) {
    SCOPED_TRACE(shard);
    expect_error(parse_checkpoint_index(R"({"weight_map":{"t":")" + shard + "\"}}", "here").status(), Code::kBadFile,
                 {"here: ", "file in the same folder", "\"t\""});
  }
  expect_error(parse_checkpoint_index(R"({"weight_map":{"t":")" + std::string(300, 'x') + "\"}}", "here").status(),
               Code::kBadFile, {"file in the same folder"});
}

TEST(CheckpointIndex, RefusesOtherDocuments) {
  const std::vector<std::pair<std::string, std::string>> documents = {
      {"[]", "must be a JSON object"},
      {"1", "must be a JSON object"},
      {"{}", "no such key"},
      {R"({"metadata":{"weight_map":{"a":"b"}}})", "no such key"},
      {R"({"weight_map":{}})", "an empty object"},
      {R"({"weight_map":[]})", "must be an object of strings"},
      {R"({"weight_map":"x"})", "must be an object of strings"},
      {R"({"weight_map":null})", "must be an object of strings"},
      {R"({"weight_map":{"a":1}})", "must be a string, got a number"},
      {R"({"weight_map":{"a":["b"]}})", "must be a string, got an array"},
      {R"({"weight_map":{"a":{"b":"c"}}})", "must be a string, got an object"},
      {R"({"weight_map":{"a":"b","a":"b"}})", "\"a\" occurs twice"},
      {R"({"weight_map":{"a":"b"},"weight_map":{"c":"d"}})", "\"weight_map\" occurs twice"},
      {R"({"weight_map":{"a":"b"})", "valid JSON"},
  };
  for (const auto& [text, words] : documents) {
    SCOPED_TRACE(text);
    expect_error(parse_checkpoint_index(text, "here").status(), Code::kBadFile, {"here: ", words});
  }
}

}  // namespace
}  // namespace megamoe::io
