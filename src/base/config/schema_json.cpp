// A Schema as JSON Schema (draft 2020-12), so that editors complete and check recipes while they are typed. It accepts
// what validate() accepts, except that custom checks cannot be expressed.
#include <cmath>

#include "base/config/schema_data.h"
#include "base/json.h"

namespace faultline {
namespace {

Json export_schema(const Schema& schema);

Json export_integer(const IntegerRange& range) {
  constexpr IntegerRange kAll;
  Json json = {{"type", "integer"}};
  if (range.min != kAll.min) json["minimum"] = range.min;
  if (range.max != kAll.max) json["maximum"] = range.max;
  return json;
}

Json export_number(const NumberRange& range) {
  Json json = {{"type", "number"}};
  if (std::isfinite(range.min)) json[range.exclusive_min ? "exclusiveMinimum" : "minimum"] = range.min;
  if (std::isfinite(range.max)) json[range.exclusive_max ? "exclusiveMaximum" : "maximum"] = range.max;
  return json;
}

void export_size(const SizeRange& size, const char* min_name, const char* max_name, Json& json) {
  if (size.min > 0) json[min_name] = size.min;
  if (size.max != SizeRange().max) json[max_name] = size.max;
}

Json export_map(const SchemaData& map, const std::string& tag_key = "", const std::string& tag = "") {
  Json properties = Json::object();
  Json required = Json::array();
  if (!tag_key.empty()) {
    properties[tag_key] = {{"const", tag}};
    required.push_back(tag_key);
  }
  for (const SchemaField& field : map.fields) {
    Json property = export_schema(field.schema);
    if (!field.options.doc.empty()) property["description"] = field.options.doc;
    if (field.options.default_value) property["default"] = to_json(*field.options.default_value);
    properties[field.name] = std::move(property);
    if (field.options.required) required.push_back(field.name);
  }
  Json json = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) json["required"] = std::move(required);
  json["additionalProperties"] = map.extra ? export_schema(*map.extra) : Json(false);
  return json;
}

Json export_alternatives(const SchemaData& data) {
  Json alternatives = Json::array();
  for (const Schema& part : data.parts) alternatives.push_back(export_schema(part));
  return {{"anyOf", std::move(alternatives)}};
}

Json export_tagged(const SchemaData& data) {
  Json alternatives = Json::array();
  for (std::size_t i = 0; i < data.parts.size(); ++i) {
    alternatives.push_back(export_map(data.parts[i].data(), data.tag_key, data.names[i]));
    if (!data.parts[i].data().description.empty())
      alternatives.back()["description"] = data.parts[i].data().description;
  }
  return {{"oneOf", std::move(alternatives)}};
}

Json export_kind(const SchemaData& data) {
  Json json = Json::object();
  switch (data.kind) {
    case SchemaKind::kNull: return {{"type", "null"}};
    case SchemaKind::kBoolean: return {{"type", "boolean"}};
    case SchemaKind::kInteger: return export_integer(data.integer);
    case SchemaKind::kNumber: return export_number(data.number);
    case SchemaKind::kString:
      json["type"] = "string";
      export_size(data.size, "minLength", "maxLength", json);
      return json;
    case SchemaKind::kChoice: return {{"enum", data.names}};
    case SchemaKind::kList:
      json["type"] = "array";
      json["items"] = export_schema(data.parts[0]);
      export_size(data.size, "minItems", "maxItems", json);
      return json;
    case SchemaKind::kMap: return export_map(data);
    case SchemaKind::kTagged: return export_tagged(data);
    case SchemaKind::kAnyOf: return export_alternatives(data);
    case SchemaKind::kAnything: return json;
  }
  FL_ASSERT(false);
  return json;
}

Json export_schema(const Schema& schema) {
  Json json = export_kind(schema.data());
  if (!schema.data().description.empty()) json["description"] = schema.data().description;
  return json;
}

}  // namespace

Json json_schema(const Schema& schema, std::string_view title) {
  Json json = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}};
  json.update(export_schema(schema));
  return json;
}

}  // namespace faultline
