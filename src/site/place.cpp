#include "site/place.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/error.h"

namespace faultline::site {
namespace {

std::vector<std::string_view> split_path(std::string_view path) {
  std::vector<std::string_view> names;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    names.push_back(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return names;
}

bool is_number(std::string_view name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
}

bool holds(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

struct Places {
  std::mutex mutex;
  std::unordered_map<std::string, PlaceId> ids;
  std::deque<Place> places{Place{}};  // references stay valid
};

Places& places() {
  static auto* all = new Places;  // lives until the process ends: backward threads may outlive static destructors
  return *all;
}

}  // namespace

int64_t layer_of_path(std::string_view path) {
  const auto names = split_path(path);
  for (std::size_t i = 1; i < names.size(); ++i) {
    const std::string_view list = names[i - 1];
    const bool counts_layers =
        list == "layers" || list == "h" || list == "blocks" || list == "block" || list == "layer";
    if (!counts_layers || !is_number(names[i])) continue;
    int64_t layer = -1;
    std::from_chars(names[i].data(), names[i].data() + names[i].size(), layer);
    return layer;
  }
  return -1;
}

std::string role_of_path(std::string_view path) {
  const auto names = split_path(path);
  if (names.empty()) return "";
  const std::string_view last = names.back();
  const auto inside = [&](std::string_view part) {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) { return holds(name, part); });
  };
  if (inside("lora_")) return "lora";
  if (is_number(last) && names.size() > 1) {
    const std::string_view list = names[names.size() - 2];
    return list == "experts" ? "expert" : layer_of_path(path) >= 0 ? "layer" : std::string(list);
  }
  if (last == "base_layer") return role_of_path(path.substr(0, path.rfind('.')));  // an adapter's wrapped layer
  if (holds(last, "norm") || last == "ln_f" || last == "ln_1" || last == "ln_2") return "rmsnorm";
  if (last == "gate" || last == "router" || last == "shared_expert_gate") return "router";
  if (last == "embed_tokens" || last == "wte") return "embedding";
  if (last == "self_attn" || last == "attn" || last == "attention") return "attention";
  if (last == "mlp" || last == "feed_forward") return "mlp";
  return std::string(last);
}

bool is_cache(const Place& place) { return place.role == "k_cache" || place.role == "v_cache"; }

PlaceId place_id(std::string_view path) {
  if (path.empty()) return kNowhere;
  Places& all = places();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto [found, inserted] = all.ids.try_emplace(std::string(path), static_cast<PlaceId>(all.places.size()));
  if (inserted) all.places.push_back({std::string(path), layer_of_path(path), role_of_path(path)});
  return found->second;
}

const Place& place_of(PlaceId id) {
  Places& all = places();
  const std::lock_guard<std::mutex> lock(all.mutex);
  FL_ASSERT(id < all.places.size());
  return all.places[id];
}

PlaceId place_count() {
  Places& all = places();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return static_cast<PlaceId>(all.places.size());
}

}  // namespace faultline::site
