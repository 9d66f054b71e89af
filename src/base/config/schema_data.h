// The inside of a Schema, for the few files that walk it: validation, JSON Schema export, overrides. One plain struct
// for all kinds; which members count follows from `kind`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/config/schema.h"

namespace faultline {

enum class SchemaKind { kNull, kBoolean, kInteger, kNumber, kString, kChoice, kList, kMap, kTagged, kAnyOf, kAnything };

struct SchemaField {
  std::string name;
  Schema schema;
  FieldOptions options;
};

struct SchemaData {
  SchemaKind kind = SchemaKind::kAnything;
  IntegerRange integer = {};
  NumberRange number = {};
  SizeRange size = {};                   // kString, kList
  std::vector<std::string> names = {};   // kChoice: the words; kTagged: the values of the tag
  std::vector<Schema> parts = {};        // kList: the item; kTagged: one for each name; kAnyOf: the alternatives
  std::vector<SchemaField> fields = {};  // kMap
  std::optional<Schema> extra = {};      // kMap
  std::string tag_key = {};              // kTagged
  std::vector<Schema::Check> checks = {};
  std::string description = {};
};

std::vector<std::string> field_names(const SchemaData& map);

}  // namespace faultline
