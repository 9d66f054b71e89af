// Other systems' settings by what they say, read with the checks that a typed configuration would have had: a wrong
// type or a contradiction is an error that names the key as it was written.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/foreign_keys.h"

namespace faultline::recipe {

class Settings {
 public:
  // `left` gets the keys that are verl's own.
  Settings(const std::vector<ForeignSetting>& settings, std::vector<std::string>& left);

  const ForeignSetting* find(const std::string& slot) const;  // null: not given, or null
  bool has_any(std::string_view prefix) const;
  // A part is on where it says so, or where it has settings and does not say that it is off.
  bool is_on(const std::string& part) const;

  bool flag(const std::string& slot) const;  // false where it is not given
  double number(const std::string& slot, double otherwise) const;
  std::string word(const std::string& slot, const std::string& otherwise) const;
  std::vector<std::string> words(const std::string& slot, std::vector<std::string> otherwise) const;
  Node layers(const std::string& slot) const;  // as a recipe's where.layer; nothing given: all

  static bool boolean(const ForeignSetting& setting);
  static UsageError wrong(const ForeignSetting& setting, std::string_view wanted);

 private:
  std::map<std::string, ForeignSetting> by_slot_;
};

}  // namespace faultline::recipe
