#include "base/config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/config/schema_data.h"

namespace faultline {
namespace {

bool has_duplicate(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return std::adjacent_find(names.begin(), names.end()) != names.end();
}

std::string describe_integer(const IntegerRange& range) {
  constexpr IntegerRange kAll;
  if (range.min != kAll.min && range.max != kAll.max)
    return fmt::format("an integer from {} to {}", range.min, range.max);
  if (range.min != kAll.min) return fmt::format("an integer of at least {}", range.min);
  if (range.max != kAll.max) return fmt::format("an integer of at most {}", range.max);
  return "an integer";
}

std::string describe_number(const NumberRange& range) {
  const bool below = std::isfinite(range.min);
  const bool above = std::isfinite(range.max);
  if (below && above) {
    return fmt::format("a number in {}{}, {}{}", range.exclusive_min ? '(' : '[', range.min, range.max,
                       range.exclusive_max ? ')' : ']');
  }
  if (below) return fmt::format("a number {} {}", range.exclusive_min ? "greater than" : "of at least", range.min);
  if (above) return fmt::format("a number {} {}", range.exclusive_max ? "less than" : "of at most", range.max);
  return "a number";
}

std::string describe_size(const SizeRange& size, std::string_view unit) {
  const bool above = size.max != SizeRange().max;
  if (size.min == size.max) return fmt::format(" of {} {}", size.min, unit);
  if (size.min > 0 && above) return fmt::format(" of {} to {} {}", size.min, size.max, unit);
  if (size.min > 0) return fmt::format(" of at least {} {}", size.min, unit);
  return above ? fmt::format(" of at most {} {}", size.max, unit) : "";
}

std::string describe_names(const std::vector<std::string>& names) {
  std::string text = names.size() == 1 ? "" : "one of ";
  for (const std::string& name : names) text += (&name == names.data() ? "" : ", ") + describe_text(name);
  return text;
}

std::string describe_alternatives(const std::vector<Schema>& alternatives) {
  std::string text;
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    if (i > 0) text += i + 1 == alternatives.size() ? " or " : ", ";
    text += describe(alternatives[i]);
  }
  return text;
}

}  // namespace

std::vector<std::string> field_names(const SchemaData& map) {
  std::vector<std::string> names;
  for (const SchemaField& field : map.fields) names.push_back(field.name);
  return names;
}

Schema::Schema(SchemaData data) : data_(std::make_shared<const SchemaData>(std::move(data))) {}

Schema Schema::null() { return Schema({.kind = SchemaKind::kNull}); }
Schema Schema::boolean() { return Schema({.kind = SchemaKind::kBoolean}); }
Schema Schema::map() { return Schema({.kind = SchemaKind::kMap}); }
Schema Schema::anything() { return Schema({.kind = SchemaKind::kAnything}); }

Schema Schema::integer(IntegerRange range) {
  FL_ASSERT(range.min <= range.max);
  return Schema({.kind = SchemaKind::kInteger, .integer = range});
}

Schema Schema::number(NumberRange range) {
  FL_ASSERT(range.min <= range.max);
  return Schema({.kind = SchemaKind::kNumber, .number = range});
}

Schema Schema::string(SizeRange characters) {
  FL_ASSERT(characters.min <= characters.max);
  return Schema({.kind = SchemaKind::kString, .size = characters});
}

Schema Schema::choice(std::vector<std::string> names) {
  FL_ASSERT(!names.empty() && !has_duplicate(names));
  return Schema({.kind = SchemaKind::kChoice, .names = std::move(names)});
}

Schema Schema::list(Schema item, SizeRange size) {
  FL_ASSERT(size.min <= size.max);
  return Schema({.kind = SchemaKind::kList, .size = size, .parts = {std::move(item)}});
}

Schema Schema::tagged(std::string key, std::vector<std::pair<std::string, Schema>> alternatives) {
  SchemaData data{.kind = SchemaKind::kTagged, .tag_key = std::move(key)};
  for (auto& [name, schema] : alternatives) {
    FL_ASSERT(schema.data().kind == SchemaKind::kMap);
    for (const SchemaField& field : schema.data().fields) FL_ASSERT(field.name != data.tag_key);
    data.names.push_back(name);
    data.parts.push_back(std::move(schema));
  }
  FL_ASSERT(!data.names.empty() && !has_duplicate(data.names));
  return Schema(std::move(data));
}

Schema Schema::any_of(std::vector<Schema> alternatives) {
  FL_ASSERT(!alternatives.empty());
  return Schema({.kind = SchemaKind::kAnyOf, .parts = std::move(alternatives)});
}

Schema Schema::field(std::string name, Schema schema, FieldOptions options) const {
  FL_ASSERT(data_->kind == SchemaKind::kMap);
  FL_ASSERT(!(options.required && options.default_value));
  for (const SchemaField& field : data_->fields) FL_ASSERT(field.name != name);
  if (options.default_value) {
    try {
      validate(*options.default_value, schema);
    } catch (const UsageError& error) {
      throw InternalError(fmt::format("the default of '{}' is not valid: {}", name, error.what()));
    }
  }
  SchemaData data = *data_;
  data.fields.push_back({std::move(name), std::move(schema), std::move(options)});
  return Schema(std::move(data));
}

Schema Schema::extra(Schema schema) const {
  FL_ASSERT(data_->kind == SchemaKind::kMap && !data_->extra);
  SchemaData data = *data_;
  data.extra = std::move(schema);
  return Schema(std::move(data));
}

Schema Schema::check(Check check) const {
  SchemaData data = *data_;
  data.checks.push_back(std::move(check));
  return Schema(std::move(data));
}

Schema Schema::described_as(std::string text) const {
  SchemaData data = *data_;
  data.description = std::move(text);
  return Schema(std::move(data));
}

std::string describe(const Schema& schema) {
  const SchemaData& data = schema.data();
  if (!data.description.empty()) return data.description;
  switch (data.kind) {
    case SchemaKind::kNull: return "nothing (null)";
    case SchemaKind::kBoolean: return "true or false";
    case SchemaKind::kInteger: return describe_integer(data.integer);
    case SchemaKind::kNumber: return describe_number(data.number);
    case SchemaKind::kString: return "a string" + describe_size(data.size, "characters");
    case SchemaKind::kChoice: return describe_names(data.names);
    case SchemaKind::kList: return "a list" + describe_size(data.size, "items");
    case SchemaKind::kMap: return "a map";
    case SchemaKind::kTagged: return fmt::format("a map with the key '{}'", data.tag_key);
    case SchemaKind::kAnyOf: return describe_alternatives(data.parts);
    case SchemaKind::kAnything: return "anything";
  }
  FL_ASSERT(false);
  return "";
}

SectionRegistry& SectionRegistry::global() {
  static SectionRegistry registry;
  return registry;
}

void SectionRegistry::add(std::string name, Schema schema, FieldOptions options) {
  FL_ASSERT(!contains(name));
  sections_.emplace(std::move(name), Section{std::move(schema), std::move(options)});
}

Schema SectionRegistry::recipe_schema() const {
  Schema schema = Schema::map();
  for (const auto& [name, section] : sections_) schema = schema.field(name, section.schema, section.options);
  return schema.described_as("a recipe");
}

}  // namespace faultline
