// Reading and writing of configurations: what the core schema means, what is refused and with which words, and that no
// file, however hostile, does more than throw a UsageError.
#include "base/config/config.h"
#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <random>

namespace faultline {
namespace config_test {

template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

std::string yaml_error(std::string_view text) {
  return error_of([&] { parse_yaml(text, "r.yaml"); });
}

std::string json_error(std::string_view text) {
  return error_of([&] { parse_json(text, "r.json"); });
}

Node value_of(const std::string& scalar) { return parse_yaml("a: " + scalar, "r.yaml").at("a"); }

std::string repeat(std::string_view piece, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += piece;
  return text;
}

TEST(Config, ReadsPlainScalarsByTheCoreSchema) {
  const std::vector<std::pair<std::string, Node>> cases = {
      {"true", true},
      {"FALSE", false},
      {"null", Node()},
      {"~", Node()},
      {"", Node()},
      {"0", 0},
      {"-12", -12},
      {"+7", 7},
      {"0x1F", 31},
      {"0o17", 15},
      {"010", 10},
      {"1e-5", 1e-5},
      {"5.e-4", 5e-4},
      {".5", 0.5},
      {"-1.5E+3", -1500.0},
      {"1.0", 1.0},
      {"-0.0", -0.0},
      {"no", "no"},
      {"yes", "yes"},
      {"on", "on"},
      {"1_000", "1_000"},
      {"10-20", "10-20"},
      {"1.2.3", "1.2.3"},
      {"-0x1F", "-0x1F"},
      {"0x", "0x"},
      {"'1'", "1"},
      {"\"true\"", "true"},
      {"''", ""},
      {"tRue", "tRue"},
      {"e5", "e5"},
      {".", "."},
      {"1e", "1e"},
      {"aten::mm", "aten::mm"},
      {".inf", std::numeric_limits<double>::infinity()},
      {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
      {"-9223372036854775808", std::numeric_limits<std::int64_t>::min()}};
  for (const auto& [text, wanted] : cases) EXPECT_EQ(value_of(text), wanted) << text;
  EXPECT_TRUE(std::isnan(value_of(".nan").as_number()));
}

TEST(Config, TellsIntegersFromNumbers) {
  EXPECT_TRUE(value_of("1").is_integer());
  EXPECT_FALSE(value_of("1.0").is_integer());
  EXPECT_FALSE(Node(1) == Node(1.0));
  EXPECT_FALSE(Node(0.0) == Node(-0.0));
  EXPECT_EQ(value_of("3").as_number(), 3.0);
  EXPECT_EQ(Node(-std::numeric_limits<double>::quiet_NaN()), value_of(".nan"));
}

TEST(Config, KeepsTheOrderAndThePlaceOfEverything) {
  const Node node = parse_yaml("b: 1\na:\n  - x\n  - {c: 2}\n", "r.yaml");
  EXPECT_EQ(node.entries()[0].key, "b");
  EXPECT_EQ(node.entries()[1].key_position.text(), "r.yaml:2");
  EXPECT_EQ(node.at("a").at(0).position().text(), "r.yaml:3");
  EXPECT_EQ(node.at("a").at(1).at("c").position().line, 4);
  EXPECT_EQ(node.at("a").at(1).at("c").position().column, 9);
}

TEST(Config, PlacesAnAbsentValueAtItsKey) {
  const Node node = parse_yaml("a:\n\n\nb: 1\n", "r.yaml");
  EXPECT_TRUE(node.at("a").is_null());
  EXPECT_EQ(node.at("a").position().line, 1);
}

TEST(Config, ExpandsAliases) {
  const Node node = parse_yaml("base: &b {x: [1, 2]}\nother: *b\nname: &n hello\nagain: *n\n", "r.yaml");
  EXPECT_EQ(node.at("other"), node.at("base"));
  EXPECT_EQ(node.at("again").as_string(), "hello");
  EXPECT_EQ(node.at("other").position().line, 2);
}

TEST(Config, AcceptsByteOrderMarkAndForeignLineEnds) {
  EXPECT_EQ(parse_yaml("\xEF\xBB\xBF"
                       "a: 1\r\nb: |\r\n  x\r\n  y\r\nc: 3\rd: 4\n",
                       "r.yaml"),
            parse_yaml("a: 1\nb: |\n  x\n  y\nc: 3\nd: 4\n", "r.yaml"));
}

TEST(Config, TakesAnEmptyFileForNull) {
  EXPECT_TRUE(parse_yaml("", "r.yaml").is_null());
  EXPECT_TRUE(parse_yaml("# nothing\n---\n...\n", "r.yaml").is_null());
}

TEST(Config, KeepsTheLineBreaksOfBlockScalars) {
  EXPECT_EQ(value_of("|\n  x\n  y\n").as_string(), "x\ny\n");
  EXPECT_EQ(value_of("|+\n  x\n\n").as_string(), "x\n\n");
  EXPECT_EQ(value_of("|-\n  x\n\n").as_string(), "x");
  EXPECT_EQ(value_of(">\n  x\n  y\n").as_string(), "x y\n");
  EXPECT_EQ(parse_yaml("--- |\n x\n", "r.yaml").as_string(), "x\n");
}

TEST(Config, RefusesWhatOtherReadersAcceptSilently) {
  EXPECT_EQ(yaml_error("a: 1\nb: 2\na: 3\n"),
            "r.yaml:3:1: the key 'a' is given twice in the same map, first on line 1");
  EXPECT_EQ(yaml_error("a: {b: 1, b: 1}\n"),
            "r.yaml:1:11: the key 'b' is given twice in the same map, first on line 1");
  EXPECT_EQ(yaml_error("a: 1\n---\nb: 2\n"),
            "r.yaml:2:1: text after the end of the document; check the indentation (one document a file)");
  EXPECT_EQ(yaml_error("15: x\n"), "r.yaml:1:1: a key must be a string, got 15; quote it: \"15\"");
  EXPECT_EQ(yaml_error("~: x\n"), "r.yaml:1:1: a key must be a string, got nothing (null)");
  EXPECT_EQ(yaml_error("[1]: x\n"), "r.yaml:1:1: a key must be a string, got a list");
  EXPECT_EQ(yaml_error("a: &x b\n*x : 1\n"), "r.yaml:2:1: a key must be a string, got an alias");
  EXPECT_EQ(yaml_error("'': x\n"), "r.yaml:1:1: a key must not be empty");
  EXPECT_EQ(yaml_error("a: !python/object x\n"),
            "r.yaml:1:4: tags are not supported, got '!python/object'; quote a value to make it a string");
  EXPECT_EQ(yaml_error("<<: {a: 1}\n"), "r.yaml:1:1: merge keys (<<) are not supported; write the keys out");
  EXPECT_EQ(yaml_error("a: 1\nfaults\n"), "r.yaml:2:1: a ':' is missing after the key");
  EXPECT_EQ(yaml_error("a: 1\nfaults"), "r.yaml:2:1: a ':' is missing after the key");
  EXPECT_EQ(yaml_error("a:\n  b: 1\n c: 2\n"),
            "r.yaml:3:2: expected 'key: value' here; check the colon and the indentation");
  EXPECT_EQ(yaml_error("a: [1,,2]\n"), "r.yaml:1:7: a value is missing here");
  EXPECT_EQ(yaml_error("a: 9223372036854775808\n"),
            "r.yaml:1:4: the integer '9223372036854775808' does not fit in 64 bits");
  EXPECT_EQ(yaml_error("a: 0xFFFFFFFFFFFFFFFF\n"),
            "r.yaml:1:4: the integer '0xFFFFFFFFFFFFFFFF' does not fit in 64 bits");
  EXPECT_EQ(yaml_error("a: 1e999\n"), "r.yaml:1:4: the number '1e999' is outside the range of double");
}

TEST(Config, NamesThePlaceAndTheRemedyOfASyntaxError) {
  EXPECT_EQ(yaml_error("x: 1\na: {b: 1"), "r.yaml:2:4: the map in braces is not closed: a '}' or ',' is missing");
  EXPECT_EQ(yaml_error("x: 1\na: {b: 1\n"), "r.yaml:2:4: the map in braces is not closed: a '}' or ',' is missing");
  EXPECT_EQ(yaml_error("x: 1\na: [b, c\n"), "r.yaml:2:4: the list in brackets is not closed: a ']' or ',' is missing");
  for (const char* open_quote : {"a: \"x", "a: \"x\n", "a: 'x\n\n", "a: &b \"x\n", "- {a: 'x\n"}) {
    EXPECT_TRUE(yaml_error(open_quote).ends_with("the quoted string is not closed")) << open_quote;
  }
  EXPECT_EQ(yaml_error("a: b: c\n"),
            "r.yaml:1:5: a ':' is not allowed here; quote the value, or check the indentation");
  EXPECT_EQ(yaml_error("a: @x\n"), "r.yaml:1:4: a value cannot start with this character; quote it");
  EXPECT_EQ(yaml_error("a: *nope\n"), "r.yaml:1:4: the alias names an anchor that is not defined above it");
}

TEST(Config, RefusesBytesThatAreNotText) {
  EXPECT_EQ(yaml_error("a: 1\nb: \xFFx\n"), "r.yaml:2:4: the byte 0xff is not valid UTF-8; save the file as UTF-8");
  EXPECT_EQ(yaml_error("a: \xC0\xAF\n"), "r.yaml:1:4: the byte 0xc0 is not valid UTF-8; save the file as UTF-8");
  EXPECT_EQ(yaml_error("a: \xED\xA0\x80\n"), "r.yaml:1:4: the byte 0xed is not valid UTF-8; save the file as UTF-8");
  EXPECT_EQ(yaml_error(std::string_view("a: \0b\n", 6)),
            "r.yaml:1:4: the control character U+0000 is not allowed; is this a text file?");
  EXPECT_EQ(yaml_error("a: 1\n\x04"
                       "b: 2\n"),
            "r.yaml:2:1: the control character U+0004 is not allowed; is this a text file?");
  EXPECT_EQ(yaml_error("a: \"x\\0y\"\n"), "r.yaml:1:4: a string must not contain a NUL character");
}

TEST(Config, RefusesFilesThatWouldExhaustMemoryOrStack) {
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string alias = "*a" + std::to_string(i - 1);
    laughs += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + repeat(alias + ", ", 9) + alias + "]\n";
  }
  EXPECT_NE(yaml_error(laughs).find("more than 200000 values"), std::string::npos) << yaml_error(laughs);
  const std::string long_string = "a: &a " + std::string(500'000, 'x') + "\nb: [" + repeat("*a, ", 40) + "]\n";
  EXPECT_NE(yaml_error(long_string).find("more than 16777216 bytes of text"), std::string::npos);
  EXPECT_NE(yaml_error("- &a [*a]").find("an alias must not stand inside what it names"), std::string::npos);
  EXPECT_NE(yaml_error(repeat("- ", 100'000)).find("nested more than 64 deep"), std::string::npos);
  EXPECT_NE(yaml_error(repeat("[", 100'000)), "no error");
  EXPECT_NE(yaml_error(repeat("{a: ", 100'000)), "no error");
  EXPECT_NE(json_error(repeat("[", 100'000)).find("nested more than 64 deep"), std::string::npos);
  EXPECT_NE(json_error("[" + repeat("1,", 300'000) + "1]").find("more than 200000 values"), std::string::npos);
  const std::string ten_megabytes = "a: " + repeat("x", 10'000'000);
  EXPECT_EQ(yaml_error(ten_megabytes), "r.yaml:1:1: the file has 10000003 bytes, more than the 1048576 allowed");
  EXPECT_NE(yaml_error(std::string(201, 'k') + ": 1").find("a key has 201 bytes"), std::string::npos);
}

TEST(Config, AllowsNestingAndKeysUpToTheLimit) {
  const Node deep = parse_yaml(repeat("[", 64) + "1" + repeat("]", 64), "r.yaml");
  EXPECT_EQ(parse_yaml(to_yaml(deep), "again"), deep);
  EXPECT_EQ(parse_yaml(std::string(200, 'k') + ": 1", "r.yaml").size(), 1U);
}

TEST(Config, ThrowsOnlyUsageErrorsForGarbageAndTruncation) {
  const std::string recipe =
      "faults:\n  - {name: \"a\\u263a\", what: [1, 2.5, ~], t: 'x'}\nb: &x |\n  text\nc: *x\n? d\n: !!str e\n";
  for (std::size_t cut = 0; cut <= recipe.size(); ++cut) {
    yaml_error(recipe.substr(0, cut));
    yaml_error(recipe.substr(cut));
    json_error(recipe.substr(cut));
  }
  std::mt19937_64 random(11);
  const std::string alphabet = "a1:-?[]{},&*!|>'\"%@#~ \n\t\\<.x0e";
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random() % 40, ' ');
    const bool binary = random() % 4 == 0;
    for (char& c : text) c = binary ? static_cast<char>(random()) : alphabet[random() % alphabet.size()];
    try {
      const Node node = parse_yaml(text, "r.yaml");
      EXPECT_EQ(parse_yaml(to_yaml(node), "again"), node) << text;
    } catch (const UsageError&) {
    }
    json_error(text);
  }
}

TEST(Json, IsReadWithLineNumbers) {
  const Node node =
      parse_json("{\n\t\"a\": [1,\n\t\t-2.5e1, \"x\\/\\ud83d\\ude00\"],\n\t\"b\": {\"c\": null}\n}", "r.json");
  EXPECT_EQ(node.at("a").at(2).as_string(), "x/😀");
  EXPECT_EQ(node.at("a").at(0).position().text(), "r.json:2");
  EXPECT_EQ(node.at("a").at(1).position().text(), "r.json:3");
  EXPECT_EQ(node.at("a").at(1).position().column, 3);
  EXPECT_EQ(node.at("a").at(2).position().column, 11);
  EXPECT_EQ(node.at("b").position().line, 4);
  EXPECT_EQ(node.key_position("b").column, 2);
  EXPECT_EQ(node.at("b").at("c").position().column, 13);
}

TEST(Json, IsReadStrictly) {
  EXPECT_EQ(json_error("{\"a\": 1,\n \"a\": 2}"),
            "r.json:2:2: the key 'a' is given twice in the same map, first on line 1");
  EXPECT_EQ(json_error("[1,\n18446744073709551615]"),
            "r.json:2:1: the integer '18446744073709551615' does not fit in 64 bits");
  EXPECT_EQ(json_error("[1e-999]"), "r.json:1:2: the number '1e-999' is outside the range of double");
  EXPECT_EQ(json_error("{\"a\": 1,}").substr(0, 28), "r.json:1:9: not valid JSON: ");
  for (const char* text :
       {"", "[1] 2", "{'a': 1}", "[NaN]", "// x\n1", "[01]", "[1,]", "\"\\ud83d\"", "\"\\u0000\"", "{\"\": 1}"}) {
    EXPECT_NE(json_error(text), "no error") << text;
  }
}

TEST(Json, IsChosenByTheNameOfTheFile) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "faultline_config_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "a.json") << "{\"a\": 1}";
  std::ofstream(folder / "a.yaml") << "a: 1\n";
  std::ofstream(folder / "bad.json") << "a: 1\n";
  std::ofstream(folder / "big.yaml") << std::string(kMaxConfigBytes + 1, ' ');
  EXPECT_EQ(load_config(folder / "a.json"), load_config(folder / "a.yaml"));
  EXPECT_NE(error_of([&] { load_config(folder / "bad.json"); }).find("bad.json:1:1: not valid JSON"),
            std::string::npos);
  EXPECT_NE(error_of([&] { load_config(folder / "big.yaml"); }).find("larger than the 1048576 bytes"),
            std::string::npos);
  EXPECT_NE(error_of([&] { load_config(folder); }).find("is a folder, not a file"), std::string::npos);
  EXPECT_NE(error_of([&] { load_config(folder / "none.yaml"); }).find("none.yaml: no such file"), std::string::npos);
  EXPECT_NE(error_of([&] { load_config("/dev/zero"); }).find("larger than"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(Json, HasNoNaN) {
  EXPECT_EQ(error_of([] { to_json(parse_yaml("- .nan\n", "r.yaml")); }), "r.yaml:1: JSON has no way to write nan");
  EXPECT_NE(error_of([] { from_json(Json(std::numeric_limits<std::uint64_t>::max())); }), "no error");
}

}  // namespace config_test
}  // namespace faultline
