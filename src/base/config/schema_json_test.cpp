// The exported JSON Schema, word for word. That it accepts what validate() accepts was checked with Python's jsonschema
// on the documents below; here the verdicts of validate() on them are fixed, and so is the export.
#include <gtest/gtest.h>

#include "base/config/schema.h"
#include "base/json.h"

namespace faultline {
namespace schema_json_test {

Schema example_schema() {
  const Schema layer = Schema::any_of({Schema::integer({.min = 0, .max = 199}), Schema::choice({"all"}),
                                       Schema::list(Schema::integer({.min = 0}), {.min = 1, .max = 4})})
                           .described_as("a layer");
  const Schema strength = Schema::number({.min = 0, .max = 1, .exclusive_min = true});
  const Schema what = Schema::tagged(
      "kind", {{"zero", Schema::map()}, {"noise", Schema::map().field("strength", strength, {.required = true})}});
  return Schema::map()
      .field("name", Schema::string({.min = 1, .max = 8}), {.required = true, .doc = "Unique in the recipe."})
      .field("layer", layer, {.default_value = "all"})
      .field("what", what)
      .field("on", Schema::boolean(), {.default_value = true})
      .field("low", Schema::number({.max = 2, .exclusive_max = true}))
      .field("none", Schema::null())
      .field("arms", Schema::map().extra(Schema::list(Schema::anything())));
}

const char* const kExport = R"({
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "example",
  "type": "object",
  "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 8, "description": "Unique in the recipe."},
    "layer": {
      "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 199},
        {"enum": ["all"]},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 4}
      ],
      "description": "a layer",
      "default": "all"
    },
    "what": {
      "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "zero"}}, "required": ["kind"], "additionalProperties": false},
        {
          "type": "object",
          "properties": {
            "kind": {"const": "noise"},
            "strength": {"type": "number", "exclusiveMinimum": 0.0, "maximum": 1.0}
          },
          "required": ["kind", "strength"],
          "additionalProperties": false
        }
      ]
    },
    "on": {"type": "boolean", "default": true},
    "low": {"type": "number", "exclusiveMaximum": 2.0},
    "none": {"type": "null"},
    "arms": {"type": "object", "properties": {}, "additionalProperties": {"type": "array", "items": {}}}
  },
  "required": ["name"],
  "additionalProperties": false
})";

struct Verdict {
  const char* document;
  bool valid;
};

const Verdict kVerdicts[] = {
    {R"({"name": "a"})", true},
    {R"({})", false},
    {R"([])", false},
    {R"({"name": ""})", false},
    {R"({"name": "123456789"})", false},
    {R"({"name": "éééééééé"})", true},
    {R"({"name": 1})", false},
    {R"({"name": "a", "nam": 1})", false},
    {R"({"name": "a", "layer": 0})", true},
    {R"({"name": "a", "layer": 199})", true},
    {R"({"name": "a", "layer": 200})", false},
    {R"({"name": "a", "layer": 3.0})", true},
    {R"({"name": "a", "layer": 3.5})", false},
    {R"({"name": "a", "layer": true})", false},
    {R"({"name": "a", "layer": "all"})", true},
    {R"({"name": "a", "layer": "al"})", false},
    {R"({"name": "a", "layer": [1, 2]})", true},
    {R"({"name": "a", "layer": []})", false},
    {R"({"name": "a", "layer": [1, 2, 3, 4, 5]})", false},
    {R"({"name": "a", "layer": [-1]})", false},
    {R"({"name": "a", "layer": null})", false},
    {R"({"name": "a", "what": {"kind": "zero"}})", true},
    {R"({"name": "a", "what": {"kind": "zero", "strength": 1}})", false},
    {R"({"name": "a", "what": {"kind": "noise"}})", false},
    {R"({"name": "a", "what": {"kind": "noise", "strength": 1}})", true},
    {R"({"name": "a", "what": {"kind": "noise", "strength": 0}})", false},
    {R"({"name": "a", "what": {"kind": "noise", "strength": 1.1}})", false},
    {R"({"name": "a", "what": {"strength": 1}})", false},
    {R"({"name": "a", "what": {"kind": 3}})", false},
    {R"({"name": "a", "what": "zero"})", false},
    {R"({"name": "a", "on": false})", true},
    {R"({"name": "a", "on": 0})", false},
    {R"({"name": "a", "low": 2})", false},
    {R"({"name": "a", "low": -1e300})", true},
    {R"({"name": "a", "none": null})", true},
    {R"({"name": "a", "none": 0})", false},
    {R"({"name": "a", "arms": {"x": [1, {"y": null}], "z": []}})", true},
    {R"({"name": "a", "arms": {"x": 1}})", false},
};

TEST(JsonSchema, IsExportedWithTypesRangesDefaultsAndDocs) {
  EXPECT_EQ(json_schema(example_schema(), "example").dump(1), Json::parse(kExport).dump(1));
}

TEST(JsonSchema, DescribesWhatValidateAccepts) {
  for (const Verdict& verdict : kVerdicts) {
    bool valid = true;
    try {
      validate(parse_json(verdict.document, "d.json"), example_schema());
    } catch (const UsageError&) {
      valid = false;
    }
    EXPECT_EQ(valid, verdict.valid) << verdict.document;
  }
}

}  // namespace schema_json_test
}  // namespace faultline
