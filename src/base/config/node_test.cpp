// The value tree itself, and that what to_yaml() and to_json() write is read back as the same tree, type and bit.
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>

#include "base/config/config.h"
#include "base/json.h"

namespace faultline {
namespace node_test {

TEST(ToYaml, PrintsARecipeTheWayOneWritesIt) {
  const std::string recipe =
      "seed: 7\n"
      "faults:\n"
      "  - name: npu_noise\n"
      "    where:\n"
      "      operator: \"aten::*\"\n"
      "      layer: 10-20\n"
      "    phases: [rollout, eval]\n"
      "  - name: \"15\"\n"
      "    extent: {}\n"
      "lr: 1e-05\n"
      "scale: 1.0\n"
      "empty: null\n";
  EXPECT_EQ(to_yaml(parse_yaml(recipe, "r.yaml")), recipe);
}

Node random_node(std::mt19937_64& random, int depth) {
  const std::vector<std::string> words = {"a",
                                          "true",
                                          "1",
                                          "~",
                                          "",
                                          "-",
                                          "- x",
                                          "a: b",
                                          "#",
                                          " lead",
                                          "trail ",
                                          "\n",
                                          "tab\t",
                                          "\"q\"",
                                          "'",
                                          "\\",
                                          "é☺😀",
                                          "\xC2\x85",
                                          "\xE2\x80\xA8",
                                          "\x01",
                                          "\x7F",
                                          "0x1",
                                          "<<",
                                          "---",
                                          "null",
                                          "*x",
                                          "&x",
                                          "!t",
                                          "[",
                                          "{}",
                                          "a,b",
                                          "1e5",
                                          ".inf",
                                          "no",
                                          "\xEF\xBB\xBF",
                                          "\r\n",
                                          "\xEF\xBF\xBF",
                                          "99999999999999999999",
                                          std::string(2000, 'w')};
  switch (random() % (depth > 0 ? 7 : 5)) {
    case 0: return {};
    case 1: return random() % 2 == 0;
    case 2: return static_cast<std::int64_t>(random() >> (random() % 64)) * (random() % 2 == 0 ? 1 : -1);
    case 3: return std::bit_cast<double>(random());
    case 4: return words[random() % words.size()];
    case 5: {
      Node list = Node::list();
      for (std::size_t i = random() % 4; i > 0; --i) list.push_back(random_node(random, depth - 1));
      return list;
    }
    default: {
      Node map = Node::map();
      for (std::size_t i = random() % 4; i > 0; --i) {
        const std::string& word = words[random() % (words.size() - 1)];
        map.set(word.empty() ? "k" : word, random_node(random, depth - 1));
      }
      return map;
    }
  }
}

TEST(ToYaml, ReadsBackAsTheSameTree) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 3000; ++round) {
    const Node node = random_node(random, 5);
    const std::string text = to_yaml(node);
    ASSERT_EQ(parse_yaml(text, "again"), node) << text;
    try {
      const Json json = to_json(node);
      ASSERT_EQ(to_json(from_json(json)), json) << text;  // JSON sorts keys
      ASSERT_EQ(to_json(parse_json(json.dump(1), "again.json")), json) << text;
    } catch (const UsageError&) {  // NaN and Inf
    }
  }
}

TEST(Node, GivesAMistakeOfOursForTheWrongType) {
  const Node node = parse_yaml("a: x\nb: [1]\n", "r.yaml");
  EXPECT_THROW(node.at("a").as_integer(), InternalError);
  EXPECT_THROW(node.at("a").as_number(), InternalError);
  EXPECT_THROW(node.at("a").as_bool(), InternalError);
  EXPECT_THROW(node.at("b").as_string(), InternalError);
  EXPECT_THROW(node.at("a").items(), InternalError);
  EXPECT_THROW(node.at("b").entries(), InternalError);
  EXPECT_THROW(node.at("c"), InternalError);
  EXPECT_THROW(node.at("b").at(1), InternalError);
  EXPECT_THROW(Node(std::numeric_limits<std::uint64_t>::max()), InternalError);
  EXPECT_EQ(node.find("c"), nullptr);
  EXPECT_EQ(node.at("a").find("c"), nullptr);
}

TEST(Node, ShortensAndEscapesTextInMessages) {
  EXPECT_EQ(describe(Node("a\nb\x7F")), "the string 'a\\x0ab\\x7f'");
  EXPECT_EQ(describe_text(std::string(59, 'x') + "é!"), "'" + std::string(59, 'x') + "…'");
  EXPECT_EQ(describe_text("é\n"), "'é\\x0a'");
  EXPECT_EQ(describe_text("a\xC2z"), "'a\\xc2z'");
  EXPECT_EQ(describe_text(std::string(70, '\x80')).size(), 57 * 4 + std::string("'…'").size());
  EXPECT_EQ(child_path("a", "x.y"), "a['x.y']");
  std::string path;
  for (int i = 0; i < 1000; ++i) path = child_path(path, "key");
  EXPECT_LT(path.size(), 300U);
  EXPECT_TRUE(path.ends_with("key.key"));
}

}  // namespace node_test
}  // namespace faultline
