// JSON limits and the text that messages show.
#include "io/json.h"

#include "io/checkpoint.h"
#include "io/json_value.h"
#include "io/text.h"
#include "io_test_util.h"

namespace megamoe::io {
namespace {

Status parse(const std::string& text) { return parse_json_value(text, "here").status(); }

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(Json, BuildsTheDocument) {
  const auto root =
      parse_json_value(R"({"a":[1,-2,3.5,"x",true,null],"b":{"c":{}}, "d": 18446744073709551615})", "here");
  ASSERT_TRUE(root.ok()) << root.status().message();
  const JsonValue& list = *root->find("a");
  ASSERT_EQ(list.items.size(), 6u);
  EXPECT_EQ(list.items[0].unsigned_value, 1u);
  EXPECT_EQ(list.items[1].kind, JsonValue::Kind::kNegative);
  EXPECT_EQ(list.items[1].real_value, -2.0);
  EXPECT_EQ(list.items[2].text, "3.5");
  EXPECT_EQ(list.items[3].text, "x");
  EXPECT_TRUE(list.items[4].boolean);
  EXPECT_EQ(list.items[5].kind, JsonValue::Kind::kNull);
  EXPECT_EQ(root->find("b")->find("c")->kind, JsonValue::Kind::kObject);
  EXPECT_EQ(root->find("d")->unsigned_value, UINT64_MAX);
  EXPECT_EQ(root->find("e"), nullptr);
  EXPECT_EQ(describe(list), "[1, -2, 3.5, \"x\", true, null]");
}

TEST(Json, DepthEndsAt64) {
  EXPECT_TRUE(parse(nested(64)).ok());
  expect_error(parse(nested(65)), Code::kBadFile, {"here: ", "at most 64 deep"});
  // Neither the parser nor the check recurses.
  expect_error(parse(std::string(50'000'000, '[')), Code::kBadFile, {"at most 64 deep"});
}

TEST(Json, DuplicateKeysAreRefusedAtAnyDepth) {
  expect_error(parse(R"({"a":1,"b":2,"a":3})"), Code::kBadFile, {"\"a\" occurs twice"});
  expect_error(parse(R"([{"x":{"k":1,"k":1}}])"), Code::kBadFile, {"\"k\" occurs twice"});
  EXPECT_TRUE(parse(R"([{"k":1},{"k":1},{"j":{"k":1}, "k":1}])").ok());
}

TEST(Json, KeysOfAnObjectAreBounded) {
  std::string text = "{";
  for (uint32_t idx = 0; idx <= kMaxJsonKeys; ++idx) text += (idx ? ",\"" : "\"") + std::to_string(idx) + "\":0";
  expect_error(parse_checkpoint_index(text + "}", "here").status(), Code::kBadFile, {"at most 4194304 keys"});
}

TEST(Json, SyntaxErrorsNameTheByte) {
  expect_error(parse(R"({"a":})"), Code::kBadFile, {"valid JSON", "at byte 6"});
  expect_error(parse(""), Code::kBadFile, {"valid JSON"});
  expect_error(parse("{} x"), Code::kBadFile, {"valid JSON"});
  expect_error(parse("[NaN]"), Code::kBadFile, {"valid JSON"});
  expect_error(parse("[01]"), Code::kBadFile, {"valid JSON"});
  expect_error(parse("\"" + std::string(1'000'000, 'x')), Code::kBadFile, {"bytes in all"});
}

TEST(Text, ShowsOnlyWhatIsSafe) {
  EXPECT_EQ(printable("plain"), "plain");
  EXPECT_EQ(printable("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"), "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(printable(std::string_view("a\0b\n\x1b\x7f", 6)), "a\\x00b\\x0a\\x1b\\x7f");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\x80"), "\\xc0\\x80");           // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");           // a control character beyond ASCII
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("abcdef", 3), "abc... (6 bytes in all)");
}

TEST(Text, JoinsAFewNames) {
  EXPECT_EQ(join_names({}), "");
  EXPECT_EQ(join_names({"a", "b"}), "a, b");
  EXPECT_EQ(join_names({"a", "b", "c", "d"}, 2), "a, b and 2 more");
}

TEST(Text, QuotesForJson) {
  EXPECT_EQ(json_quoted("a\"b\n"), "\"a\\\"b\\n\"");
  EXPECT_EQ(json_quoted("\xff"), "\"\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace megamoe::io
