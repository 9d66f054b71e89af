// A value inside a JSON file together with its path, for readers that must say which field they refuse.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json.h"

namespace faultline::model {

class JsonField {
 public:
  JsonField(const Json& value, const std::string& origin, std::string path = "")
      : value_(&value), origin_(&origin), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }

  bool has(const std::string& key) const;  // a map with this key, whose value is not null
  JsonField at(const std::string& key) const;
  JsonField at(size_t index) const;
  size_t size() const;  // of a list

  // UsageError where the value is of another type.
  const std::string& text() const;
  bool boolean() const;
  int64_t integer() const;
  bool boolean_or(const std::string& key, bool otherwise) const;
  void require_map(std::initializer_list<std::string_view> known_keys) const;  // no others
  std::string type() const;                                                    // its "type"

  [[noreturn]] void refuse(const std::string& complaint) const;

 private:
  const Json* value_;
  const std::string* origin_;
  std::string path_;
};

// JSON text as UsageError has it: depth limited, the file named.
Json parse_json_file(std::string_view text, const std::string& origin);

}  // namespace faultline::model
