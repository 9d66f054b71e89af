// A place: where in a model something runs, named by its module path ("model.layers.3.mlp.down_proj"). Paths are
// interned, so that an operator call carries one number. The layer is read off the path, the role from its last names;
// both by what architectures have in common, never by a module's class.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace faultline::site {

using PlaceId = uint32_t;
inline constexpr PlaceId kNowhere = 0;  // not known: counted as unattributed, never guessed

struct Place {
  std::string path;
  int64_t layer = -1;  // -1: belongs to no layer
  std::string role;    // layer, rmsnorm, attention, mlp, router, expert, embedding, lm_head, lora, or the last name
};

PlaceId place_id(std::string_view path);  // interns; "" is kNowhere
const Place& place_of(PlaceId id);
PlaceId place_count();  // ids are below it

// Keys and values that a module writes into its cache are places of their own below it: PATH.k_cache, PATH.v_cache.
bool is_cache(const Place& place);

int64_t layer_of_path(std::string_view path);
std::string role_of_path(std::string_view path);

}  // namespace faultline::site
