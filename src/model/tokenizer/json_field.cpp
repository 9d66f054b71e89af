#include "model/tokenizer/json_field.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config/config.h"
#include "base/error.h"

namespace faultline::model {
namespace {

std::string found(const Json& value) {
  if (value.is_structured() || value.is_null()) return fmt::format("{}", value.is_null() ? "null" : value.type_name());
  return value.is_string() ? describe_text(value.get_ref<const std::string&>()) : to_json_text(value);
}

}  // namespace

void JsonField::refuse(const std::string& complaint) const {
  throw UsageError(fmt::format("{}: {}: {}", *origin_, path_.empty() ? "the whole file" : path_, complaint));
}

bool JsonField::has(const std::string& key) const {
  if (!value_->is_object()) refuse(fmt::format("wanted a map, found {}", found(*value_)));
  const auto entry = value_->find(key);
  return entry != value_->end() && !entry->is_null();
}

JsonField JsonField::at(const std::string& key) const {
  if (!value_->is_object()) refuse(fmt::format("wanted a map, found {}", found(*value_)));
  const auto entry = value_->find(key);
  if (entry == value_->end()) refuse(fmt::format("the key '{}' is missing", key));
  return {*entry, *origin_, child_path(path_, key)};
}

JsonField JsonField::at(size_t index) const {
  if (index >= size()) refuse(fmt::format("wanted at least {} entries, found {}", index + 1, size()));
  return {(*value_)[index], *origin_, child_path(path_, index)};
}

size_t JsonField::size() const {
  if (!value_->is_array()) refuse(fmt::format("wanted a list, found {}", found(*value_)));
  return value_->size();
}

const std::string& JsonField::text() const {
  if (!value_->is_string()) refuse(fmt::format("wanted a string, found {}", found(*value_)));
  return value_->get_ref<const std::string&>();
}

bool JsonField::boolean() const {
  if (!value_->is_boolean()) refuse(fmt::format("wanted true or false, found {}", found(*value_)));
  return value_->get<bool>();
}

int64_t JsonField::integer() const {
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() || value_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (!fits) refuse(fmt::format("wanted an integer, found {}", found(*value_)));
  return value_->get<int64_t>();
}

bool JsonField::boolean_or(const std::string& key, bool otherwise) const {
  return has(key) ? at(key).boolean() : otherwise;
}

void JsonField::require_map(std::initializer_list<std::string_view> known_keys) const {
  if (!value_->is_object()) refuse(fmt::format("wanted a map, found {}", found(*value_)));
  for (const auto& [key, unused] : value_->items())
    if (std::find(known_keys.begin(), known_keys.end(), key) == known_keys.end())
      refuse(fmt::format("the key {} is not supported", describe_text(key)));
}

std::string JsonField::type() const { return at("type").text(); }

Json parse_json_file(std::string_view text, const std::string& origin) {
  try {
    return parse_json_text(text, origin);
  } catch (const RuntimeFailure& failure) {  // records are ours; this file is the user's
    throw UsageError(failure.what());
  }
}

}  // namespace faultline::model
