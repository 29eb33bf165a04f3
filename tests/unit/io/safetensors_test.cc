// Safetensors: what is read, what is refused, what is written.
#include "io/safetensors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "io_test_util.h"

namespace megamoe::io {
namespace {

using test::TempDir;

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

Status parse_status(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "here").status();
}

Status parse_status(std::string_view header, size_t data_bytes) {
  return parse_status(raw_safetensors(header, std::string(data_bytes, 'x')));
}

TEST(SafetensorsHeader, ReadsTensorsSortedByNameWithOffsetsInTheFile) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[8,14]},)"
      R"("a":{"shape":[2],"data_offsets":[0,8],"dtype":"F32"},"empty":{"dtype":"I64","shape":[0,7],"data_offsets":[8,8]},)"
      R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[14,16]}}   )";
  const std::string file = raw_safetensors(header, std::string(16, 'x'));
  const auto parsed = parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "here");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->data_offset, 8 + header.size());
  EXPECT_EQ(parsed->metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(parsed->tensors.size(), 4u);
  EXPECT_EQ(parsed->tensors[0].name, "a");
  EXPECT_EQ(parsed->tensors[1].name, "b");
  EXPECT_EQ(parsed->tensors[2].name, "empty");
  EXPECT_EQ(parsed->tensors[3].name, "scalar");
  EXPECT_EQ(parsed->find("b")->file_offset, 8 + header.size() + 8);
  EXPECT_EQ(parsed->find("b")->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(parsed->find("b")->num_bytes, 6u);
  EXPECT_EQ(parsed->find("empty")->num_elements(), 0u);
  EXPECT_EQ(parsed->find("scalar")->num_elements(), 1u);
  EXPECT_EQ(parsed->find("c"), nullptr);
}

TEST(SafetensorsHeader, KnowsEveryElementType) {
  const std::map<std::string, uint32_t> types = {
      {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
      {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  for (const auto& [type, num_bytes] : types) {
    const std::string bytes = std::to_string(3 * num_bytes);
    const std::string header = R"({"t":{"dtype":")" + type + R"(","shape":[3],"data_offsets":[0,)" + bytes + "]}}";
    EXPECT_TRUE(parse_status(header, 3 * num_bytes).ok()) << type;
    EXPECT_FALSE(parse_status(header, 3 * num_bytes + 1).ok()) << type;
  }
}

struct HostileHeader {
  std::string name;
  std::string header;
  size_t data_bytes;
  std::vector<std::string> words;
};

std::string tensor(const std::string& fields) { return R"({"t":{)" + fields + "}}"; }

std::vector<HostileHeader> hostile_headers() {
  const std::string u8 = R"("dtype":"U8",)";
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  return {
      {"empty", "", 0, {"must be a JSON object"}},
      {"not_an_object", "[1]", 0, {"must be a JSON object"}},
      {"space_before", " {}", 0, {"begins with '{'"}},
      {"truncated_json", R"({"t":{"dtype")", 0, {"valid JSON"}},
      {"two_documents", "{}{}", 0, {"valid JSON"}},
      {"comment", "{/* */}", 0, {"valid JSON"}},
      {"bad_utf8", "{\"\xff\":{}}", 0, {"valid JSON"}},
      {"unknown_dtype",
       tensor(R"("dtype":"C64","shape":[1],"data_offsets":[0,8])"),
       8,
       {"\"t\"", "dtype", "\"C64\"", "BF16"}},
      {"dtype_not_text", tensor(R"("dtype":3,"shape":[1],"data_offsets":[0,8])"), 8, {"dtype", "must be a string"}},
      {"no_dtype", tensor(R"("shape":[1],"data_offsets":[0,1])"), 1, {"\"t\"", "must have dtype"}},
      {"no_shape", tensor(u8 + R"("data_offsets":[0,1])"), 1, {"\"t\"", "must have shape"}},
      {"no_offsets", tensor(u8 + R"("shape":[1])"), 1, {"\"t\"", "data_offsets"}},
      {"one_offset", tensor(u8 + R"("shape":[1],"data_offsets":[0])"), 1, {"\"t\"", "two data_offsets"}},
      {"three_offsets", tensor(u8 + R"("shape":[1],"data_offsets":[0,1,2])"), 1, {"at most 2 entries"}},
      {"unknown_key", tensor(u8 + R"("shape":[1],"data_offsets":[0,1],"stride":[1])"), 1, {"\"stride\""}},
      {"tensor_not_object", R"({"t":[1]})", 0, {"\"t\"", "must be described by an object"}},
      {"tensor_null", R"({"t":null})", 0, {"\"t\"", "got null"}},
      {"negative_shape", tensor(u8 + R"("shape":[-1],"data_offsets":[0,1])"), 1, {"shape", "non-negative", "-1"}},
      {"negative_zero", tensor(u8 + R"("shape":[-0],"data_offsets":[0,0])"), 0, {"shape", "non-negative"}},
      {"fraction", tensor(u8 + R"("shape":[1.5],"data_offsets":[0,1])"), 1, {"shape", "integers", "1.5"}},
      {"whole_fraction", tensor(u8 + R"("shape":[1.0],"data_offsets":[0,1])"), 1, {"shape", "integers", "1.0"}},
      {"exponent", tensor(u8 + R"("shape":[1e0],"data_offsets":[0,1])"), 1, {"shape", "integers", "1e0"}},
      {"infinite", tensor(u8 + R"("shape":[1e999],"data_offsets":[0,1])"), 1, {"1e999"}},
      {"above_2_63", tensor(u8 + R"("shape":[9223372036854775808],"data_offsets":[0,1])"), 1, {"below 2^63"}},
      {"above_2_64", tensor(u8 + R"("shape":[18446744073709551617],"data_offsets":[0,1])"), 1, {"below 2^63"}},
      {"product_wraps", tensor(u8 + R"("shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0, {"fewer than 2^64"}},
      {"element_wraps",
       R"({"t":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})",
       0,
       {"fewer than 2^64"}},
      {"too_many_dims",
       tensor(u8 +
              R"("shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"),
       1,
       {"at most 32 entries"}},
      {"shape_text", tensor(u8 + R"("shape":["1"],"data_offsets":[0,1])"), 1, {"shape", "array of integers"}},
      {"shape_scalar", tensor(u8 + R"("shape":1,"data_offsets":[0,1])"), 1, {"shape", "array of integers"}},
      {"shape_nested", tensor(u8 + R"("shape":[[1]],"data_offsets":[0,1])"), 1, {"shape", "array of integers"}},
      {"offsets_reversed", tensor(u8 + R"("shape":[1],"data_offsets":[1,0])"), 1, {"begin before they end", "[1, 0]"}},
      {"offsets_fraction", tensor(u8 + R"("shape":[1],"data_offsets":[0.0,1])"), 1, {"data_offsets", "integers"}},
      {"length_short", tensor(u8 + R"("shape":[5],"data_offsets":[0,4])"), 4, {"\"t\"", "is 5, got 4"}},
      {"length_long", tensor(u8 + R"("shape":[3],"data_offsets":[0,4])"), 4, {"\"t\"", "is 3, got 4"}},
      {"beyond_the_end", tensor(u8 + R"("shape":[9],"data_offsets":[0,9])"), 4, {"5 bytes are missing", "\"t\""}},
      {"trailing_bytes", tensor(u8 + R"("shape":[3],"data_offsets":[0,3])"), 10, {"got 7 bytes after it"}},
      {"hole_at_start", tensor(u8 + R"("shape":[3],"data_offsets":[1,4])"), 4, {"no hole", "1 unused bytes"}},
      {"hole",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
       4,
       {"no hole", "2 unused bytes", "\"b\""}},
      {"overlap",
       R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       4,
       {"overlap", "\"a\"", "\"b\""}},
      {"same_bytes_twice",
       R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4,
       {"overlap"}},
      {"duplicate_tensor",
       R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2,
       {"\"t\" occurs twice"}},
      {"duplicate_field",
       tensor(u8 + R"("shape":[1],"shape":[1],"data_offsets":[0,1])"),
       1,
       {"\"shape\" occurs twice"}},
      {"duplicate_by_escape",
       R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0074":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2,
       {"\"t\" occurs twice"}},
      {"duplicate_metadata", R"({"__metadata__":{"a":"1","a":"2"}})", 0, {"\"a\" occurs twice"}},
      {"metadata_number", R"({"__metadata__":{"a":1}})", 0, {"__metadata__", "object of strings"}},
      {"metadata_nested", R"({"__metadata__":{"a":{}}})", 0, {"__metadata__", "object of strings"}},
      {"metadata_text", R"({"__metadata__":"pt"})", 0, {"__metadata__", "object of strings"}},
      {"too_deep", R"({"t":)" + deep + "}", 0, {"must be described by an object"}},
  };
}

TEST(SafetensorsHeader, RefusesHostileHeaders) {
  for (const HostileHeader& hostile : hostile_headers()) {
    SCOPED_TRACE(hostile.name);
    std::vector<std::string> words = hostile.words;
    words.push_back("here: ");
    expect_error(parse_status(hostile.header, hostile.data_bytes), Code::kBadFile, words);
  }
}

TEST(SafetensorsHeader, RefusesLengthsThatCannotBe) {
  expect_error(parse_status(""), Code::kBadFile, {"8-byte length", "got 0 bytes"});
  expect_error(parse_status("1234567"), Code::kBadFile, {"8-byte length", "got 7 bytes"});
  expect_error(parse_status(std::string(8, '\xff')), Code::kBadFile,
               {"at most 100000000 bytes", "18446744073709551615"});
  std::string longer = raw_safetensors("{}", "");
  longer[0] = 10;
  expect_error(parse_status(longer), Code::kBadFile, {"inside the file", "8 bytes are missing"});
  // The caller has the length field but not the whole header in memory.
  const std::string file = raw_safetensors("{}      ", "");
  const auto parsed = parse_safetensors_header(std::as_bytes(std::span(file)).first(12), file.size(), "here");
  expect_error(parsed.status(), Code::kBadFile, {"given whole", "4 of its 8 bytes"});
}

TEST(SafetensorsHeader, EscapesNamesInMessages) {
  const Status status = parse_status(R"({"a\u001b[31m\u0000b":1})", 0);
  expect_error(status, Code::kBadFile, {"a\\x1b[31m\\x00b"});
  const Status long_name = parse_status("{\"" + std::string(100'000, 'n') + "\":1}", 0);
  expect_error(long_name, Code::kBadFile, {"100000 bytes in all"});
  EXPECT_LT(long_name.message().size(), 1000u);
}

TEST(SafetensorsHeader, LargeHeaderParsesInReasonableTimeAndMemory) {
  // 100,000 tensors, the order of the largest checkpoints.
  std::string header = "{";
  for (int idx = 0; idx < 100'000; ++idx) {
    const std::string name = "model.layers.7.mlp.experts." + std::to_string(idx) + ".gate_proj.weight";
    header += (idx ? ",\"" : "\"") + name + R"(":{"dtype":"U8","shape":[1,1],"data_offsets":[)" + std::to_string(idx) +
              "," + std::to_string(idx + 1) + "]}";
  }
  const std::string file = raw_safetensors(header + "}", std::string(100'000, 'x'));
  const auto parsed = parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "here");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->tensors.size(), 100'000u);
}

TEST(SafetensorsHeader, MetadataEntriesAreBounded) {
  std::string header = R"({"__metadata__":{)";
  for (int idx = 0; idx < 70'000; ++idx) header += (idx ? ",\"" : "\"") + std::to_string(idx) + R"(":"")";
  expect_error(parse_status(header + "}}", 0), Code::kBadFile, {"__metadata__", "at most 65536"});
}

TEST(SafetensorsFile, ReadsPartsAndWholes) {
  const TempDir dir;
  ASSERT_TRUE(write_tensors(dir.file("x.safetensors"), {{"a", stored<int32_t>(FileDType::kInt32, {2, 2}, {1, 2, 3, 4})},
                                                        {"b", stored<uint8_t>(FileDType::kUInt8, {3}, {7, 8, 9})}})
                  .ok());
  const auto file = SafetensorsFile::open(dir.file("x.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const TensorInfo* a = file->find("a");
  ASSERT_NE(a, nullptr);
  std::vector<int32_t> whole(4);
  ASSERT_TRUE(file->read(*a, std::as_writable_bytes(std::span(whole))).ok());
  EXPECT_EQ(whole, (std::vector<int32_t>{1, 2, 3, 4}));
  std::vector<int32_t> part(2);
  ASSERT_TRUE(file->read_part(*a, 4, std::as_writable_bytes(std::span(part))).ok());
  EXPECT_EQ(part, (std::vector<int32_t>{2, 3}));
  expect_error(file->read(*a, std::as_writable_bytes(std::span(part))), Code::kInvalidArgument,
               {"\"a\"", "16 bytes", "got 8"});
  expect_error(file->read_part(*a, 12, std::as_writable_bytes(std::span(part))), Code::kInvalidArgument, {"inside"});
  expect_error(file->read_part(*a, UINT64_MAX, std::as_writable_bytes(std::span(part))), Code::kInvalidArgument,
               {"inside"});
}

TEST(SafetensorsFile, RefusesWhatIsNoRegularFile) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo(dir.file("pipe").c_str(), 0600), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ::sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(dir.file("socket").size(), sizeof(address.sun_path));
  std::strcpy(address.sun_path, dir.file("socket").c_str());
  ASSERT_EQ(::bind(socket, reinterpret_cast<const ::sockaddr*>(&address), sizeof(address)), 0);
  expect_error(SafetensorsFile::open(dir.file("absent")).status(), Code::kBadFile, {"absent", "No such file"});
  expect_error(SafetensorsFile::open(dir.path()).status(), Code::kBadFile, {"regular file", "a folder"});
  expect_error(SafetensorsFile::open(dir.file("pipe")).status(), Code::kBadFile, {"regular file", "a pipe"});
  expect_error(SafetensorsFile::open("/dev/zero").status(), Code::kBadFile, {"regular file", "a device"});
  expect_error(SafetensorsFile::open(dir.file("socket")).status(), Code::kBadFile, {"socket"});
  ::close(socket);
}

TEST(SafetensorsFile, FollowsSymbolicLinks) {
  const TempDir dir;
  ASSERT_TRUE(write_tensors(dir.file("blob"), {{"a", stored<uint8_t>(FileDType::kUInt8, {1}, {7})}}).ok());
  std::filesystem::create_symlink("blob", dir.file("x.safetensors"));
  EXPECT_TRUE(SafetensorsFile::open(dir.file("x.safetensors")).ok());
}

TEST(SafetensorsFile, SaysHowManyBytesATruncatedFileLacks) {
  const TempDir dir;
  const std::string path = dir.file("x.safetensors");
  ASSERT_TRUE(write_tensors(path, {{"a", stored(FileDType::kUInt8, {10000}, std::vector<uint8_t>(10000, 1))},
                                   {"b", stored(FileDType::kUInt8, {5000}, std::vector<uint8_t>(5000, 2))}})
                  .ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4096);
  expect_error(SafetensorsFile::open(path).status(), Code::kBadFile, {path, "4096 bytes are missing", "\"b\""});
}

TEST(SafetensorsFile, TruncationAfterOpeningIsAnErrorAndNoSignal) {
  const TempDir dir;
  const std::string path = dir.file("x.safetensors");
  ASSERT_TRUE(write_tensors(path, {{"a", stored(FileDType::kUInt8, {100000}, std::vector<uint8_t>(100000, 1))}}).ok());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 70000);
  std::vector<std::byte> data(100000);
  expect_error(file->read(*file->find("a"), data), Code::kBadFile, {"tensor \"a\"", "70000 bytes are missing"});
}

TEST(SafetensorsWriter, WritesWhatItReadsAndAlignsTheData) {
  const TempDir dir;
  const std::string path = dir.file("x.safetensors");
  const std::vector<float> values = {1.5f, -2.0f};
  const std::vector<TensorToWrite> tensors = {
      {"quote\" and \n newline", FileDType::kFloat32, {2}, std::as_bytes(std::span(values))},
      {"nothing", FileDType::kInt64, {0, 4}, {}}};
  ASSERT_TRUE(write_safetensors(path, tensors, {{"key", "va\"lue"}}).ok());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->header().metadata, (std::map<std::string, std::string>{{"key", "va\"lue"}}));
  EXPECT_EQ(file->header().data_offset % 8, 0u);
  std::vector<float> read(2);
  ASSERT_TRUE(file->read(*file->find("quote\" and \n newline"), std::as_writable_bytes(std::span(read))).ok());
  EXPECT_EQ(read, values);
  EXPECT_EQ(file->find("nothing")->shape, (std::vector<uint64_t>{0, 4}));
}

TEST(SafetensorsWriter, RefusesWhatContradictsItself) {
  const TempDir dir;
  const std::string path = dir.file("x.safetensors");
  const std::vector<std::byte> data(4);
  const std::vector<TensorToWrite> short_data = {{"a", FileDType::kFloat32, {2}, data}};
  const std::vector<TensorToWrite> twice = {{"a", FileDType::kFloat32, {1}, data},
                                            {"a", FileDType::kFloat32, {1}, data}};
  const std::vector<TensorToWrite> reserved = {{"__metadata__", FileDType::kFloat32, {1}, data}};
  expect_error(write_safetensors(path, short_data, {}), Code::kInvalidArgument, {"\"a\"", "got 4"});
  expect_error(write_safetensors(path, twice, {}), Code::kInvalidArgument, {"distinct"});
  expect_error(write_safetensors(path, reserved, {}), Code::kInvalidArgument, {"__metadata__"});
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(SafetensorsWriter, LeavesNothingBehindWhereItCannotWrite) {
  const TempDir dir;
  const std::vector<std::byte> data(4);
  const std::vector<TensorToWrite> tensors = {{"a", FileDType::kFloat32, {1}, data}};
  expect_error(write_safetensors(dir.file("no/such/folder"), tensors, {}), Code::kBadFile, {"No such file"});
  expect_error(write_safetensors(dir.path(), tensors, {}), Code::kBadFile, {"regular file", "a folder"});
  expect_error(write_safetensors("/dev/null", tensors, {}), Code::kBadFile, {"regular file", "a device"});
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(SafetensorsWriter, AFullDiskLeavesTheOldFile) {
  // A limit on the size of files stands for a full disk: the write fails half way.
  const TempDir dir;
  const std::string path = dir.write("x.safetensors", "old content");
  const std::vector<std::byte> data(1 << 20);
  const std::vector<TensorToWrite> tensors = {{"a", FileDType::kUInt8, {data.size()}, data}};
  ::rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const ::rlimit limit = {4096, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status status = write_safetensors(path, tensors, {});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  expect_error(status, Code::kBadFile, {path, "File too large"});
  EXPECT_EQ(read_file(path), "old content");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), std::filesystem::directory_iterator()), 1);
}

TEST(SafetensorsWriter, ReplacesAnOldFileAndFollowsTheUmask) {
  const TempDir dir;
  const std::string path = dir.write("x.safetensors", "old");
  const mode_t old_mask = ::umask(0027);
  const Status status = write_tensors(path, {{"a", stored<uint8_t>(FileDType::kUInt8, {1}, {7})}});
  ::umask(old_mask);
  ASSERT_TRUE(status.ok()) << status.message();
  struct stat properties {};
  ASSERT_EQ(::stat(path.c_str(), &properties), 0);
  EXPECT_EQ(properties.st_mode & 0777u, 0640u);
  EXPECT_TRUE(SafetensorsFile::open(path).ok());
}

}  // namespace
}  // namespace megamoe::io
