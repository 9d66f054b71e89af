// The settings of the systems that this one follows: keys of verl's configuration with noise injection, flags of the
// dead-zone scripts, environment variables. Each known key stands in one table with the slot it fills; a key about
// faults that the table does not have is refused with the nearest, because a key that is ignored is a fault that
// never fires.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/config.h"

namespace faultline::recipe {

struct ForeignKey {
  std::string_view name;  // as in a verl configuration; flags and variables are derived from it
  std::string_view slot;  // what it says, whatever its name
  std::string_view becomes;
};
std::span<const ForeignKey> foreign_keys();

struct ForeignSetting {
  std::string key;  // as written
  Node value;
  bool from_file = false;
};

// Every leaf of a file, its path as the key.
std::vector<ForeignSetting> settings_of_file(const Node& file);
// key=value (Hydra's + and ++ allowed), --flag value, --flag=value, --flag.
std::vector<ForeignSetting> settings_of_arguments(std::span<const std::string> arguments);
// A shell script that launches a training (launch_script.h), with its arguments.
std::vector<ForeignSetting> settings_of_script(const std::string& file, const std::vector<std::string>& arguments,
                                               int command);
// VERL_NOISY_OPS_* of this process.
std::vector<ForeignSetting> settings_of_environment();

// The known key that a setting means; null: one of verl's own that has nothing to do with faults. Throws UsageError for
// a key that nobody knows, or that speaks of faults or noise and is not in the table.
const ForeignKey* known_key(const ForeignSetting& setting);

}  // namespace faultline::recipe
