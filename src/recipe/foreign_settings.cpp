#include "recipe/foreign_settings.h"

#include <fmt/format.h>

#include <algorithm>

namespace faultline::recipe {

namespace {

// 1 in a variable and true in a file say the same.
bool say_the_same(const Node& one, const Node& other) {
  const auto as_integer = [](const Node& node) -> Node {
    return node.is_boolean() ? Node(std::int64_t{node.as_bool()}) : node;
  };
  return one == other || ((one.is_boolean() || other.is_boolean()) && as_integer(one) == as_integer(other));
}

}  // namespace

Settings::Settings(const std::vector<ForeignSetting>& settings, std::vector<std::string>& left) {
  for (const ForeignSetting& setting : settings) {
    const ForeignKey* key = known_key(setting);
    if (key == nullptr) {
      left.push_back(setting.key);
      continue;
    }
    const auto [found, is_new] = by_slot_.try_emplace(std::string(key->slot), setting);
    if (!is_new && !say_the_same(found->second.value, setting.value))
      throw UsageError(fmt::format("{} is {} and {} is {}: which one is meant?", found->second.key,
                                   describe(found->second.value), setting.key, describe(setting.value)));
  }
}

const ForeignSetting* Settings::find(const std::string& slot) const {
  const auto found = by_slot_.find(slot);
  return found == by_slot_.end() || found->second.value.is_null() ? nullptr : &found->second;
}

bool Settings::has_any(std::string_view prefix) const {
  return std::any_of(by_slot_.begin(), by_slot_.end(),
                     [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

bool Settings::is_on(const std::string& part) const {
  if (const ForeignSetting* enabled = find(part + ".enabled")) return boolean(*enabled);
  return has_any(part + ".");
}

UsageError Settings::wrong(const ForeignSetting& setting, std::string_view wanted) {
  return UsageError(fmt::format("{}: wanted {}, got {}", setting.key, wanted, describe(setting.value)));
}

bool Settings::boolean(const ForeignSetting& setting) {
  const Node& value = setting.value;
  if (value.is_boolean()) return value.as_bool();
  if (value.is_integer() && (value.as_integer() == 0 || value.as_integer() == 1)) return value.as_integer() == 1;
  if (value.is_string() && (value.as_string() == "yes" || value.as_string() == "no")) return value.as_string() == "yes";
  throw wrong(setting, "true or false");
}

bool Settings::flag(const std::string& slot) const {
  const ForeignSetting* setting = find(slot);
  return setting != nullptr && boolean(*setting);
}

double Settings::number(const std::string& slot, double otherwise) const {
  const ForeignSetting* setting = find(slot);
  if (setting == nullptr) return otherwise;
  if (!setting->value.is_number()) throw wrong(*setting, "a number");
  return setting->value.as_number();
}

std::string Settings::word(const std::string& slot, const std::string& otherwise) const {
  const ForeignSetting* setting = find(slot);
  if (setting == nullptr) return otherwise;
  if (!setting->value.is_string()) throw wrong(*setting, "a word");
  return setting->value.as_string();
}

std::vector<std::string> Settings::words(const std::string& slot, std::vector<std::string> otherwise) const {
  const ForeignSetting* setting = find(slot);
  if (setting == nullptr) return otherwise;
  if (setting->value.is_string()) {  // "rmsnorm,down_proj", too
    std::vector<std::string> parts(1);
    for (const char c : setting->value.as_string()) {
      if (c == ',')
        parts.emplace_back();
      else if (c != ' ')
        parts.back() += c;
    }
    return parts;
  }
  if (!setting->value.is_list()) throw wrong(*setting, "a list of names");
  std::vector<std::string> parts;
  for (const Node& item : setting->value.items()) {
    if (!item.is_string()) throw wrong(*setting, "a list of names");
    parts.push_back(item.as_string());
  }
  return parts;
}

Node Settings::layers(const std::string& slot) const {
  const ForeignSetting* setting = find(slot);
  return setting == nullptr || (setting->value.is_list() && setting->value.size() == 0) ? Node("all") : setting->value;
}

}  // namespace faultline::recipe
