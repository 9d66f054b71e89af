// Validation: every problem reported, in words fixed here; defaults and types as modules will read them.
#include "base/config/schema.h"

#include <gtest/gtest.h>

#include <limits>

namespace faultline {
namespace schema_test {

Schema layer_schema() {
  const Schema range = Schema::string().check([](const Node& node) {
    return node.as_string().find('-') == std::string::npos ? "expected a range such as 10-20" : "";
  });
  return Schema::any_of({Schema::integer({.min = 0, .max = 199}), Schema::choice({"all"}), range,
                         Schema::list(Schema::integer({.min = 0}), {.min = 1})});
}

Schema fault_schema() {
  const Schema strength = Schema::number({.min = 0, .max = 1, .exclusive_min = true});
  const Schema what = Schema::tagged(
      "kind", {{"zero", Schema::map()},
               {"relative_gaussian", Schema::map().field("strength", strength, {.default_value = 0.05})},
               {"deadzone", Schema::map().field("threshold", Schema::number({.min = 0}), {.required = true})}});
  const Schema where = Schema::map()
                           .field("operator", Schema::choice({"matmul", "softmax", "rms_norm"}), {.required = true})
                           .field("layer", layer_schema(), {.default_value = "all"});
  return Schema::map()
      .field("name", Schema::string({.min = 1}), {.required = true})
      .field("where", where, {.required = true})
      .field("what", what, {.required = true});
}

Schema recipe_schema() {
  return Schema::map()
      .field("seed", Schema::integer({.min = 0}), {.default_value = 7})
      .field("lr", Schema::number({.min = 0, .exclusive_min = true}))
      .field("gradient", Schema::boolean(), {.default_value = false})
      .field("faults", Schema::list(fault_schema(), {.max = 3}), {.default_value = Node::list()})
      .field("arms", Schema::map().extra(Schema::anything()))
      .field("extent", Schema::map().field("fraction", Schema::number(), {.default_value = 1}),
             {.default_value = Node::map()});
}

std::string problems(std::string_view yaml, const Schema& schema = recipe_schema()) {
  try {
    validate(parse_yaml(yaml, "r.yaml"), schema);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Validate, SaysWhatACheckFoundInTheOnlyAlternativeOfItsType) {
  const Schema range = Schema::string().check([](const Node&) { return "it counts downwards"; });
  const Schema layer = Schema::any_of({Schema::integer({.min = 0}), range});
  EXPECT_EQ(problems("20-10", layer), "r.yaml:1: it counts downwards");
  EXPECT_EQ(problems("-1", layer), "r.yaml:1: expected an integer of at least 0 or a string, got -1");
  // Two could have taken it, so neither's complaint is the reason.
  const Schema two = Schema::any_of({range, Schema::choice({"all"})});
  EXPECT_EQ(problems("al", two), "r.yaml:1: expected a string or 'all', got the string 'al'; did you mean 'all'?");
}

TEST(Validate, FillsInADefaultOnlyWhereItApplies) {
  const Schema extent = Schema::map()
                            .field("fraction", Schema::number(), {.default_value = 1})
                            .field("structure", Schema::string(),
                                   {.default_value = "element", .default_if = [](const Node& map) {
                                      return map.at("fraction").is_number() && map.at("fraction").as_number() < 1;
                                    }});
  EXPECT_EQ(validate(parse_yaml("{}", "r.yaml"), extent).find("structure"), nullptr);
  EXPECT_EQ(validate(parse_yaml("{fraction: 0.5}", "r.yaml"), extent).at("structure"), Node("element"));
  EXPECT_EQ(validate(parse_yaml("{structure: row}", "r.yaml"), extent).at("structure"), Node("row"));
  EXPECT_EQ(problems("{fraction: x}", extent), "r.yaml:1: fraction: expected a number, got the string 'x'");
}

TEST(Validate, FillsInDefaultsInTheOrderOfTheSchema) {
  const Node recipe = validate(
      parse_yaml("faults:\n  - what: {kind: relative_gaussian}\n    where: {operator: matmul}\n    name: a\nlr: 1\n",
                 "r.yaml"),
      recipe_schema());
  EXPECT_EQ(to_yaml(recipe),
            "seed: 7\n"
            "lr: 1.0\n"
            "gradient: false\n"
            "faults:\n"
            "  - name: a\n"
            "    where:\n"
            "      operator: matmul\n"
            "      layer: all\n"
            "    what:\n"
            "      kind: relative_gaussian\n"
            "      strength: 0.05\n"
            "extent:\n"
            "  fraction: 1.0\n");
  EXPECT_EQ(validate(recipe, recipe_schema()), recipe);
  EXPECT_EQ(recipe.find("arms"), nullptr);
}

TEST(Validate, GivesEveryNodeItsPathAndPlace) {
  const Node recipe =
      validate(parse_yaml("faults:\n  - name: a\n    where:\n      operator: matmul\n    what: {kind: zero}\n"
                          "arms: {e5: {aqn.schedule: [x]}}\n",
                          "r.yaml"),
               recipe_schema());
  const Node& fault = recipe.at("faults").at(0);
  EXPECT_EQ(std::string(fault.at("where").at("operator").error("nothing matches").what()),
            "r.yaml:4: faults[0].where.operator: nothing matches");
  EXPECT_EQ(fault.at("where").at("layer").position().line, 4);  // a default: the place of its map
  EXPECT_EQ(fault.at("where").at("layer").path(), "faults[0].where.layer");
  EXPECT_EQ(recipe.at("arms").at("e5").at("aqn.schedule").at(0).path(), "arms.e5['aqn.schedule'][0]");
}

TEST(Validate, ReportsAllProblemsAtOnce) {
  EXPECT_EQ(
      problems("sed: 1\n"
               "lr: 0\n"
               "gradient: 1\n"
               "faults:\n"
               "  - name: ''\n"
               "    where: {operator: matmull, layr: 3}\n"
               "    what: {kind: deadzon}\n"
               "  - where: {operator: matmul, layer: 200}\n"
               "    what: {kind: relative_gaussian, strength: .nan}\n"
               "  - what: {kind: deadzone, threshold: '1', strength: 2}\n"),
      "r.yaml:2: lr: expected a number greater than 0, got 0\n"
      "r.yaml:3: gradient: expected true or false, got 1\n"
      "r.yaml:5: faults[0].name: expected a string of at least 1 characters, got the string ''\n"
      "r.yaml:6: faults[0].where.operator: expected one of 'matmul', 'softmax', 'rms_norm', got the string 'matmull'; "
      "did you mean 'matmul'?\n"
      "r.yaml:6: faults[0].where.layr: unknown key; did you mean 'layer'?\n"
      "r.yaml:7: faults[0].what.kind: expected one of 'zero', 'relative_gaussian', 'deadzone', got the string "
      "'deadzon'; "
      "did you mean 'deadzone'?\n"
      "r.yaml:8: faults[1]: the key 'name' is missing; expected a string of at least 1 characters\n"
      "r.yaml:8: faults[1].where.layer: expected an integer from 0 to 199, 'all', a string or a list of at least 1 "
      "items, "
      "got 200\n"
      "r.yaml:9: faults[1].what.strength: expected a number in (0, 1], got nan\n"
      "r.yaml:10: faults[2]: the key 'name' is missing; expected a string of at least 1 characters\n"
      "r.yaml:10: faults[2]: the key 'where' is missing; expected a map\n"
      "r.yaml:10: faults[2].what.threshold: expected a number of at least 0, got the string '1'\n"
      "r.yaml:10: faults[2].what.strength: unknown key; known here: threshold, kind\n"
      "r.yaml:1: sed: unknown key; did you mean 'seed'?");
}

TEST(Validate, SaysWhatWasWantedAtTheTop) {
  EXPECT_EQ(problems("- 1\n"), "r.yaml:1: expected a map, got a list of 1");
  EXPECT_EQ(problems(""), "r.yaml:1: expected a map, got nothing (null)");
  EXPECT_EQ(
      problems("faults: [1, 2, 3, 4]\n", Schema::map().field("faults", Schema::list(Schema::integer(), {.max = 3}))),
      "r.yaml:1: faults: expected a list of at most 3 items, got a list of 4");
  EXPECT_EQ(problems("what: {}\n", Schema::map().field("what", Schema::tagged("kind", {{"zero", Schema::map()}}))),
            "r.yaml:1: what: the key 'kind' is missing; expected 'zero'");
  EXPECT_EQ(problems("a: 15\n", Schema::map().field("a", Schema::string())),
            "r.yaml:1: a: expected a string, got 15; quote it");
  EXPECT_EQ(problems("a: 15\n", Schema::map()), "r.yaml:1: a: unknown key; no keys are allowed here");
}

TEST(Validate, ReadsALayerInEveryForm) {
  const Schema schema = Schema::map().field("layer", layer_schema());
  for (const char* good : {"15", "all", "10-20", "[1, 2]", "1e2"}) {
    EXPECT_EQ(problems(std::string("layer: ") + good, schema), "no error") << good;
  }
  EXPECT_EQ(problems("layer: [1, -2]", schema), "r.yaml:1: layer[1]: expected an integer of at least 0, got -2");
  EXPECT_EQ(problems("layer: []", schema), "r.yaml:1: layer: expected a list of at least 1 items, got a list of 0");
  EXPECT_EQ(problems("layer: al", schema),
            "r.yaml:1: layer: expected an integer from 0 to 199, 'all', a string or a list of at least 1 items, got "
            "the string "
            "'al'; did you mean 'all'?");
  EXPECT_EQ(problems("layer: {}",
                     Schema::map().field("layer", layer_schema().described_as("a layer (15, '10-20', all, [1, 2])"))),
            "r.yaml:1: layer: expected a layer (15, '10-20', all, [1, 2]), got an empty map");
}

TEST(Validate, KeepsToTheBounds) {
  const Schema half_open = Schema::number({.min = 0, .max = 1, .exclusive_max = true});
  const Schema open_min = Schema::number({.min = 0, .exclusive_min = true});
  const auto accepts = [](const Schema& schema, const Node& node) {
    try {
      validate(node, schema);
      return true;
    } catch (const UsageError&) {
      return false;
    }
  };
  EXPECT_TRUE(accepts(half_open, 0));
  EXPECT_FALSE(accepts(half_open, 1));
  EXPECT_FALSE(accepts(half_open, -1e-300));
  EXPECT_FALSE(accepts(open_min, 0.0));
  EXPECT_TRUE(accepts(open_min, 1e-300));
  EXPECT_TRUE(accepts(Schema::integer({.min = -2, .max = 5}), -2));
  EXPECT_TRUE(accepts(Schema::integer({.min = -2, .max = 5}), 5.0));
  EXPECT_FALSE(accepts(Schema::integer({.min = -2, .max = 5}), 6));
  EXPECT_FALSE(accepts(Schema::integer(), 1.5));
  EXPECT_FALSE(accepts(Schema::integer(), 1e300));
  EXPECT_FALSE(accepts(Schema::integer(), true));
  EXPECT_FALSE(accepts(Schema::number(), std::numeric_limits<std::int64_t>::max()));
  EXPECT_TRUE(accepts(Schema::number(), std::numeric_limits<std::int64_t>::min()));
  EXPECT_TRUE(accepts(Schema::string({.max = 2}), "é☺"));
  EXPECT_FALSE(accepts(Schema::string({.max = 2}), "abc"));
  EXPECT_TRUE(accepts(Schema::null(), Node()));
  EXPECT_FALSE(accepts(Schema::null(), 0));
}

TEST(Validate, RefusesNanAndInfinityEverywhere) {
  for (const char* value : {".nan", ".inf", "-.inf"}) {
    EXPECT_NE(problems(std::string("lr: ") + value), "no error");
    EXPECT_NE(problems(std::string("seed: ") + value), "no error");
    EXPECT_NE(problems(std::string("arms: {a: [{b: ") + value + "}]}"), "no error");
  }
  EXPECT_EQ(problems("arms: {a: [{b: .inf}]}"), "r.yaml:1: arms.a[0].b: expected a finite number, got inf");
}

TEST(Validate, RunsChecksOnceTheShapeIsRight) {
  int calls = 0;
  const Schema schema =
      Schema::map()
          .field("low", Schema::number(), {.default_value = 2})
          .field("high", Schema::number(), {.required = true})
          .check([&](const Node& node) {
            ++calls;
            return node.at("low").as_number() > node.at("high").as_number() ? "low is above high" : "";
          });
  EXPECT_EQ(problems("high: 1\n", schema), "r.yaml:1: low is above high");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(problems("high: x\n", schema), "r.yaml:1: high: expected a number, got the string 'x'");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(problems("high: 3\n", schema), "no error");
  const Schema tagged = Schema::tagged("kind", {{"a", schema}});
  EXPECT_EQ(problems("{kind: a, high: 1}\n", tagged), "r.yaml:1: low is above high");
}

TEST(Validate, SurvivesAFloodOfProblems) {
  std::string yaml = "faults:\n";
  for (int i = 0; i < 5000; ++i) yaml += "  - 1\n";
  const std::string text = problems(yaml);
  EXPECT_LT(text.size(), 100'000U);
  EXPECT_TRUE(text.ends_with("… and 4801 more problems")) << text.substr(text.size() - 100);
}

TEST(Schema, RefusesItsOwnContradictions) {
  EXPECT_THROW((void)Schema::map().field("a", Schema::integer({.min = 0}), {.default_value = -1}), InternalError);
  EXPECT_THROW((void)Schema::map().field("a", Schema::integer(), {.required = true, .default_value = 1}),
               InternalError);
  EXPECT_THROW((void)Schema::map().field("a", Schema::integer()).field("a", Schema::integer()), InternalError);
  EXPECT_THROW((void)Schema::integer().field("a", Schema::integer()), InternalError);
  EXPECT_THROW((void)Schema::integer({.min = 2, .max = 1}), InternalError);
  EXPECT_THROW((void)Schema::choice({"a", "a"}), InternalError);
  EXPECT_THROW((void)Schema::tagged("kind", {{"a", Schema::map().field("kind", Schema::string())}}), InternalError);
}

TEST(SectionRegistry, MakesARecipeOfItsSections) {
  SectionRegistry registry;
  registry.add("train", Schema::map().field("steps", Schema::integer({.min = 1}), {.default_value = 40}),
               {.default_value = Node::map()});
  registry.add("seed", Schema::integer(), {.default_value = 7});
  EXPECT_EQ(to_yaml(validate(Node::map(), registry.recipe_schema())), "seed: 7\ntrain:\n  steps: 40\n");
  EXPECT_EQ(problems("trian: {}\n", registry.recipe_schema()), "r.yaml:1: trian: unknown key; did you mean 'train'?");
  EXPECT_TRUE(registry.contains("train"));
  EXPECT_THROW(registry.add("train", Schema::anything()), InternalError);
}

}  // namespace schema_test
}  // namespace faultline
