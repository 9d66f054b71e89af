// Overrides from the command line: what they change, and that a typing error never does.
#include "base/config/override.h"
#include "base/json.h"

#include <gtest/gtest.h>

namespace faultline {
namespace override_test {

const char* const kRecipe =
    "seed: 7\n"
    "train: {lr: 1e-5}\n"
    "faults:\n"
    "  - name: a\n"
    "    what: {kind: noise, strength: 0.5}\n"
    "arms: {e5: {aqn.schedule: x}}\n";

Schema recipe_schema() {
  const Schema train = Schema::map().field("lr", Schema::number()).field("steps", Schema::integer());
  const Schema what = Schema::tagged("kind", {{"noise", Schema::map().field("strength", Schema::number())},
                                              {"deadzone", Schema::map().field("threshold", Schema::number())}});
  return Schema::map()
      .field("seed", Schema::integer())
      .field("train", train)
      .field("aqn", Schema::map().field("sigma", Schema::number()))
      .field("faults", Schema::list(Schema::map().field("name", Schema::string()).field("what", what)))
      .field("arms", Schema::map().extra(Schema::anything()));
}

Node apply(std::vector<std::string> overrides, const Schema* schema = nullptr) {
  return apply_overrides(parse_yaml(kRecipe, "r.yaml"), overrides, schema);
}

std::string error_of(const std::string& text, const Schema* schema = nullptr) {
  try {
    apply({text}, schema);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Override, ChangesWhatIsThere) {
  EXPECT_EQ(apply({"seed=8"}).at("seed"), Node(8));
  EXPECT_EQ(apply({"train.lr=5.e-4"}).at("train").at("lr"), Node(5e-4));
  EXPECT_EQ(apply({"faults.0.what.strength=0.1"}), apply({"faults[0].what.strength=0.1"}));
  EXPECT_EQ(apply({"faults[0].what.strength=0.1"}).at("faults").at(0).at("what").at("strength"), Node(0.1));
  EXPECT_EQ(apply({"faults[0]['name']=b"}).at("faults").at(0).at("name"), Node("b"));
  EXPECT_EQ(apply({"seed=1", "seed=2"}).at("seed"), Node(2));
}

TEST(Override, ReadsValuesAsYaml) {
  const auto seed = [](const std::string& value) { return to_json(apply({"seed=" + value}).at("seed")).dump(); };
  EXPECT_EQ(seed("[1, 2]"), "[1,2]");
  EXPECT_EQ(seed("{kind: zero, n: [1]}"), R"({"kind":"zero","n":[1]})");
  EXPECT_EQ(seed("'7'"), R"("7")");
  EXPECT_EQ(seed("\"a\\n\""), R"("a\n")");
  EXPECT_EQ(seed("''"), R"("")");
  EXPECT_EQ(seed("null"), "null");
  EXPECT_EQ(seed("true"), "true");
  EXPECT_EQ(seed(" 0x10 "), "16");
}

TEST(Override, TakesAnUnquotedValueWhole) {
  for (const char* text : {"*mm", "a: b", "x # y", "#", "&a", "!t", "@f", "a=b", "%", "- x", "1,2", "a]"}) {
    EXPECT_EQ(apply({std::string("seed=") + text}).at("seed"), Node(text));
  }
}

TEST(Override, MarksWhatItSetsAsComingFromTheCommandLine) {
  const Node recipe = apply({"train.lr=fast", "+train.x={y: [1]}"});
  EXPECT_EQ(recipe.at("train").at("lr").position().text(), "command line");
  EXPECT_EQ(recipe.at("train").at("x").at("y").at(0).position().text(), "command line");
  EXPECT_EQ(recipe.at("train").position().text(), "r.yaml:2");
  try {
    validate(recipe, recipe_schema());
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()),
              "command line: train.lr: expected a number, got the string 'fast'\n"
              "command line: train.x: unknown key; known here: lr, steps");
  }
}

TEST(Override, AddsOnlyWithAPlus) {
  EXPECT_EQ(error_of("train.steps=40"),
            "override 'train.steps=40': there is no 'steps' in 'train'; to add it, write +train.steps=40");
  EXPECT_EQ(apply({"+train.steps=40"}).at("train").at("steps"), Node(40));
  EXPECT_EQ(apply({"+new.deep.key=1"}).at("new").at("deep").at("key"), Node(1));
  EXPECT_EQ(error_of("+seed=8"),
            "override '+seed=8': 'seed' is there already (r.yaml:1); to change it, leave out the plus");
  EXPECT_EQ(apply({"++seed=8", "++other=9"}).at("other"), Node(9));
  EXPECT_EQ(apply({"+faults.1={name: b}"}).at("faults").size(), 2U);
  EXPECT_EQ(apply({"+faults.1.name=b"}).at("faults").at(1).at("name"), Node("b"));
}

TEST(Override, SetsAnAbsentKeyThatTheSchemaKnows) {
  const Schema schema = recipe_schema();
  EXPECT_EQ(apply({"train.steps=40"}, &schema).at("train").at("steps"), Node(40));
  EXPECT_EQ(apply({"aqn.sigma=0.5"}, &schema).at("aqn").at("sigma"), Node(0.5));
  EXPECT_EQ(error_of("train.stpes=4", &schema),
            "override 'train.stpes=4': there is no 'stpes' in 'train'; did you mean 'steps'?");
  EXPECT_EQ(error_of("faults.0.what.threshold=1", &schema),
            "override 'faults.0.what.threshold=1': there is no 'threshold' in 'faults[0].what'; to add it, write "
            "+faults.0.what.threshold=1");
  EXPECT_EQ(
      apply({"faults.0.what.kind=deadzone", "faults.0.what.threshold=1"}, &schema).at("faults").at(0).at("what").size(),
      3U);
  EXPECT_EQ(error_of("arms.e6={}", &schema), "override 'arms.e6={}': there is no 'e6' in 'arms'; did you mean 'e5'?");
}

TEST(Override, RemovesWithATilde) {
  EXPECT_EQ(apply({"~train"}).find("train"), nullptr);
  EXPECT_EQ(apply({"~faults.0"}).at("faults").size(), 0U);
  EXPECT_EQ(apply({"~faults[0].what.strength"}).at("faults").at(0).at("what").size(), 1U);
  EXPECT_EQ(error_of("~train.lrr"), "override '~train.lrr': there is no 'lrr' in 'train'; did you mean 'lr'?");
  EXPECT_EQ(error_of("~seed=7"), "override '~seed=7': removing takes no value; write ~a.b");
}

TEST(Override, SaysThatAKnownKeyIsNotSetInsteadOfSuggestingIt) {
  const Schema schema = recipe_schema();
  EXPECT_EQ(error_of("~aqn.sigma", &schema),
            "override '~aqn.sigma': 'aqn' is not set in the configuration, so there is nothing to remove; leave the "
            "override out");
  EXPECT_EQ(error_of("~train.steps", &schema),
            "override '~train.steps': 'steps' is not set in 'train', so there is nothing to remove; leave the override "
            "out");
  // A name that only the schema knows cannot be removed either, so it is no suggestion.
  EXPECT_EQ(error_of("~train.stpes", &schema), "override '~train.stpes': there is no 'stpes' in 'train'");
}

TEST(Override, FindsKeysThatHoldADot) {
  EXPECT_EQ(apply({"arms.e5.aqn.schedule=y"}).at("arms").at("e5").at("aqn.schedule"), Node("y"));
  EXPECT_EQ(apply({"arms.e5['aqn.schedule']=y"}), apply({"arms.e5.aqn.schedule=y"}));
  EXPECT_EQ(apply({"+arms.e5['a=b.c']=1"}).at("arms").at("e5").at("a=b.c"), Node(1));
}

TEST(Override, NamesTheNearestKey) {
  EXPECT_EQ(error_of("sed=1"), "override 'sed=1': there is no 'sed' in the configuration; did you mean 'seed'?");
  EXPECT_EQ(error_of("faults.0.nam=x"),
            "override 'faults.0.nam=x': there is no 'nam' in 'faults[0]'; did you mean 'name'?");
}

TEST(Override, RefusesPathsThatLeadNowhere) {
  EXPECT_EQ(error_of("seed.x=1"), "override 'seed.x=1': 'seed' is 7, not a map");
  EXPECT_EQ(error_of("+seed.x=1"), "override '+seed.x=1': 'seed' is 7, not a map");
  EXPECT_EQ(
      error_of("faults.1.name=x"),
      "override 'faults.1.name=x': 'faults' has 1 items, numbered from 0; there is no item '1'; to append, use +…1=");
  EXPECT_EQ(error_of("+faults.7.name=x"),
            "override '+faults.7.name=x': 'faults' has 1 items, numbered from 0; there is no item '7'");
  EXPECT_EQ(error_of("~faults.-1"),
            "override '~faults.-1': 'faults' has 1 items, numbered from 0; there is no item '-1'");
  EXPECT_EQ(error_of("~faults.first"),
            "override '~faults.first': 'faults' has 1 items, numbered from 0; there is no item 'first'");
}

TEST(Override, RefusesMalformedText) {
  EXPECT_EQ(error_of("seed"), "override 'seed': there is no '='; write a.b=value, +a.b=value or ~a.b");
  EXPECT_EQ(error_of("seed="),
            "override 'seed=': the value is missing; write '' for an empty string, null for nothing");
  const std::string empty_part = ": the path has an empty part; write it like a.b[0].c=value";
  for (const char* text : {"=1", "a..b=1", ".a=1", "a.=1", "a[]=1", "~", "a.[0]=1"}) {
    EXPECT_NE(error_of(text), "no error") << text;
  }
  EXPECT_EQ(error_of("a..b=1"), "override 'a..b=1'" + empty_part);
  EXPECT_EQ(error_of("faults[0=1"), "override 'faults[0=1': a '[' is not closed");
  EXPECT_EQ(error_of("faults[0]name=1"), "override 'faults[0]name=1': after ']' a '.' or '[' must follow");
  EXPECT_EQ(error_of("seed=[1"), "override 'seed=[1': the list in brackets is not closed: a ']' or ',' is missing");
  EXPECT_EQ(error_of("seed='a' b").substr(0, 54), "override 'seed='a' b': text after the end of the docum");
  EXPECT_EQ(error_of("seed='a': b"), "override 'seed='a': b': there is text after the value");
  EXPECT_EQ(error_of("seed=99999999999999999999"),
            "override 'seed=99999999999999999999': the integer '99999999999999999999' does not fit in 64 bits");
  EXPECT_EQ(error_of("seed=\xFF"), "override 'seed=\\xff': it is not valid UTF-8 text");
  std::string deep = "+a";
  for (int i = 0; i < 100'000; ++i) deep += ".a";
  EXPECT_NE(error_of(deep + "=1").find("the path has more than 63 parts"), std::string::npos);
  EXPECT_NE(error_of("+" + std::string(201, 'k') + "=1").find("a key has more than 200 bytes"), std::string::npos);
}

TEST(Override, LeavesTheConfigurationAloneWhenRefused) {
  const Node before = parse_yaml(kRecipe, "r.yaml");
  Node node = before;
  const Schema schema = recipe_schema();
  EXPECT_THROW(apply_override(node, parse_override("aqn.sigmaa=1"), &schema), UsageError);
  EXPECT_EQ(node, before);
}

TEST(Override, StartsFromAnEmptyFile) {
  const std::vector<std::string> overrides = {"+seed=1"};
  EXPECT_EQ(apply_overrides(Node(), overrides).at("seed"), Node(1));
}

}  // namespace override_test
}  // namespace faultline
