// What a configuration must look like, declared once: the same Schema checks a file, fills in the defaults, tells the
// command line which keys exist, and is exported as JSON Schema for editors. A Schema is an immutable value; builders
// return a new one. Validation reports every problem it finds, each with file, line, path, what was wanted and what
// came, so that a recipe is repaired in one go.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config/config.h"
#include "base/json.h"

namespace faultline {

struct IntegerRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool exclusive_min = false;
  bool exclusive_max = false;
};

struct SizeRange {  // items of a list, characters of a string
  std::size_t min = 0;
  std::size_t max = std::numeric_limits<std::size_t>::max();
};

struct FieldOptions {
  bool required = false;                   // a field that is neither required nor defaulted may be absent
  std::optional<Node> default_value = {};  // must itself be valid
  std::string doc = {};                    // one sentence for editors and --help
  // Whether the default applies, by the fields declared before this one: a parameter that would do nothing is then
  // left out, and one that is there was written by somebody. They may be of the wrong type still.
  std::function<bool(const Node&)> default_if = {};
};

struct SchemaData;

class Schema {
 public:
  using Check = std::function<std::string(const Node&)>;  // "" or a complaint

  static Schema null();
  static Schema boolean();
  static Schema integer(IntegerRange range = {});  // 1e3 is the integer 1000
  static Schema number(NumberRange range = {});    // NaN and Inf are refused everywhere, whatever the schema
  static Schema string(SizeRange characters = {});
  static Schema choice(std::vector<std::string> names);
  static Schema list(Schema item, SizeRange size = {});
  static Schema map();  // closed: only its fields, until .extra()
  // A map whose fields depend on the value of one key: tagged("kind", {{"zero", map()}, {"deadzone",
  // map().field(...)}}). The alternatives are map schemas without that key.
  static Schema tagged(std::string key, std::vector<std::pair<std::string, Schema>> alternatives);
  static Schema any_of(std::vector<Schema> alternatives);  // the first that fits
  static Schema anything();

  [[nodiscard]] Schema field(std::string name, Schema schema, FieldOptions options = {}) const;  // map only
  [[nodiscard]] Schema extra(Schema schema) const;  // map only: other keys are free, with values like this
  // Runs on the node once its shape is right, defaults filled in. Several checks run in order until one complains.
  [[nodiscard]] Schema check(Check check) const;
  // What messages call it: "a layer (15, '10-20', all or [1, 2])". JSON Schema has it as the description.
  [[nodiscard]] Schema described_as(std::string text) const;

  const SchemaData& data() const { return *data_; }

 private:
  explicit Schema(SchemaData data);
  std::shared_ptr<const SchemaData> data_;
};

// The node with defaults filled in, fields in the order of the schema (then free keys in their own), every number a
// kNumber, every path set. Throws UsageError with all problems, one a line.
Node validate(const Node& node, const Schema& schema);

// "an integer from 0 to 10", "one of 'a', 'b'"
std::string describe(const Schema& schema);

// JSON Schema, draft 2020-12. Custom checks cannot be expressed and are left out.
Json json_schema(const Schema& schema, std::string_view title);

// The top-level sections of a recipe. Each module registers the one it owns; the recipe's schema is the map of them
// all.
class SectionRegistry {
 public:
  static SectionRegistry& global();

  void add(std::string name, Schema schema, FieldOptions options = {});  // twice the same name: FL_ASSERT
  bool contains(std::string_view name) const { return sections_.find(name) != sections_.end(); }
  Schema recipe_schema() const;  // sections by name, so that the order of registration does not matter

 private:
  struct Section {
    Schema schema;
    FieldOptions options;
  };
  std::map<std::string, Section, std::less<>> sections_;
};

}  // namespace faultline
