#include "recipe/foreign_keys.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/config_reader.h"
#include "base/text.h"

namespace faultline {
namespace {

constexpr std::array kKeys = {
    ForeignKey{"trainer.noise_injection.enabled", "aqn.enabled", "the section aqn"},
    ForeignKey{"trainer.noise_injection.sigma_start", "aqn.sigma_start", "aqn.sigma_start"},
    ForeignKey{"trainer.noise_injection.sigma_end", "aqn.sigma_end", "aqn.sigma_end"},
    ForeignKey{"trainer.noise_injection.num_stages", "aqn.num_stages", "aqn.num_stages of schedule global_decay"},
    ForeignKey{"trainer.noise_injection.epoch_aware", "aqn.epoch_aware", "aqn.schedule: epoch_aware"},
    ForeignKey{"trainer.noise_injection.stages_per_epoch", "aqn.stages_per_epoch", "aqn.stages_per_epoch"},
    ForeignKey{"trainer.noise_injection.target_modules", "aqn.target_modules",
               "nothing: noise goes to norms; other modules are refused"},
    ForeignKey{"trainer.noise_injection.layer_types", "aqn.layer_types", "as target_modules"},
    ForeignKey{"trainer.noise_injection.exclude_patterns", "aqn.exclude_patterns",
               "nothing: router, lm_head and adapters are left out by role; other patterns are refused"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config", "aqn.layer_sigma_config",
               "aqn.layer_multipliers: each layer's sigma over sigma_start"},
    ForeignKey{"aqn.enabled", "aqn.enabled", "the section aqn"},
    ForeignKey{"aqn.target_layers", "aqn.layers", "aqn.layers"},
    ForeignKey{"aqn.sigma", "aqn.sigma", "aqn.sigma_start; schedule constant unless another is named"},
    ForeignKey{"aqn.schedule", "aqn.schedule", "aqn.schedule"},
    ForeignKey{"trainer.hw_error_injection.enabled", "hw.enabled", "a rule hw_error"},
    ForeignKey{"trainer.hw_error_injection.error_scale", "hw.scale", "what.strength"},
    ForeignKey{"trainer.hw_error_injection.error_type", "hw.type", "what.kind"},
    ForeignKey{"trainer.hw_error_injection.injection_point", "hw.surface", "where.surface"},
    ForeignKey{"trainer.hw_error_injection.target_modules", "hw.modules", "where.module, one rule each"},
    ForeignKey{"trainer.hw_error_injection.target_layers", "hw.layers", "where.layer"},
    ForeignKey{"trainer.hw_error_injection.apply_during", "hw.during", "phases of the rule"},
    ForeignKey{"trainer.hw_error_injection.deadzone_threshold", "hw.threshold", "what.threshold of kind deadzone"},
    ForeignKey{"trainer.noisy_ops.enabled", "ops.enabled", "a rule noisy_ops, forward and backward"},
    ForeignKey{"trainer.noisy_ops.error_scale", "ops.scale", "what.strength"},
    ForeignKey{"trainer.noisy_ops.error_type", "ops.type", "what.kind"},
    ForeignKey{"trainer.noisy_ops.all_ops", "ops.all", "where.operator: all_ops"},
    ForeignKey{"trainer.noisy_ops.target_operators", "ops.operators", "where.operator, one rule each"},
    ForeignKey{"trainer.noisy_ops.target_layers", "ops.layers", "where.layer"},
    ForeignKey{"deadzone.enabled", "zone.enabled", "a rule dead_zone at a layer's output"},
    ForeignKey{"deadzone.layer", "zone.layer", "where.layer"},
    ForeignKey{"deadzone.threshold", "zone.threshold", "what.threshold"},
    ForeignKey{"deadzone.sparsity", "zone.sparsity", "extent.fraction"},
    ForeignKey{"ground_truth_layer", "fault.layer", "where.layer of a rule planted"},
    ForeignKey{"fault_type", "fault.type", "what.kind"},
    ForeignKey{"fault_magnitude", "fault.magnitude", "the kind's strength, threshold or margin"},
};

// Top levels of verl's configuration: whatever else they hold is verl's own business.
constexpr std::array<std::string_view, 12> kVerlGroups = {
    "actor_rollout_ref", "algorithm",  "critic",       "custom_reward_function", "data",   "global_profiler", "hydra",
    "ray_init",          "ray_kwargs", "reward_model", "transfer_queue",         "trainer"};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

// "deadzone.layer" as a flag or "trainer.noisy_ops.error_scale" as a variable: one spelling for all three.
std::string spelling(std::string_view key) {
  std::string text = lower(key);
  while (text.starts_with("+") || text.starts_with("-")) text.erase(0, 1);
  if (text.starts_with("verl_noisy_ops_")) text = "trainer.noisy_ops." + text.substr(15);
  if (text == "trainer.noisy_ops.scale") text = "trainer.noisy_ops.error_scale";
  if (text == "trainer.noisy_ops.type") text = "trainer.noisy_ops.error_type";
  std::replace(text.begin(), text.end(), '.', '_');
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

void add_leaves(const Node& node, const std::string& path, std::vector<ForeignSetting>& settings) {
  if (!node.is_map() || node.size() == 0) {
    settings.push_back({path, node});
    return;
  }
  for (const auto& entry : node.entries()) {
    const std::string below = path.empty() ? entry.key : path + "." + entry.key;
    if (spelling(below) == "trainer_noise_injection_layer_sigma_config")
      settings.push_back({below, entry.value});  // its value is a map
    else
      add_leaves(entry.value, below, settings);
  }
}

Node value_of(const std::string& text) {
  Node value = text.starts_with("[") || text.starts_with("{") || text.starts_with("'") || text.starts_with("\"")
                   ? parse_yaml(text, "command line")
                   : resolve_plain_scalar(text);
  if (value.is_string() && value.as_string() == "None") value = Node();
  Position position;
  position.file = std::make_shared<const std::string>("command line");
  value.set_position_everywhere(position);
  return value;
}

void check_text(std::string_view given) {
  if (!is_valid_utf8(given)) throw UsageError(fmt::format("{} is not valid UTF-8 text", describe_text(given)));
}

bool is_flag(const std::string& text) { return text.starts_with("--") && text.size() > 2; }

}  // namespace

std::span<const ForeignKey> foreign_keys() { return kKeys; }

std::vector<ForeignSetting> settings_of_file(const Node& file) {
  if (!file.is_map()) throw file.error("expected a configuration: a map of keys");
  std::vector<ForeignSetting> settings;
  for (const auto& entry : file.entries()) add_leaves(entry.value, entry.key, settings);
  return settings;
}

std::vector<ForeignSetting> settings_of_arguments(std::span<const std::string> arguments) {
  std::for_each(arguments.begin(), arguments.end(), check_text);
  std::vector<ForeignSetting> settings;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& text = arguments[i];
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos && equals > 0) {
      settings.push_back({text.substr(0, equals), value_of(text.substr(equals + 1))});
    } else if (is_flag(text)) {
      const bool has_value =
          i + 1 < arguments.size() && !is_flag(arguments[i + 1]) && arguments[i + 1].find('=') == std::string::npos;
      settings.push_back({text, has_value ? value_of(arguments[i + 1]) : Node(true)});
      i += has_value ? 1 : 0;
    } else {
      throw UsageError(fmt::format("'{}' is neither a file, key=value nor a --flag", text));
    }
  }
  return settings;
}

std::vector<ForeignSetting> settings_of_environment() {
  std::vector<ForeignSetting> settings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (!text.starts_with("VERL_NOISY_OPS_") || equals == std::string_view::npos) continue;
    check_text(text);
    settings.push_back({std::string(text.substr(0, equals)), value_of(std::string(text.substr(equals + 1)))});
  }
  return settings;
}

const ForeignKey* known_key(const ForeignSetting& setting) {
  const std::string wanted = spelling(setting.key);
  std::vector<std::string> names;
  for (const ForeignKey& key : kKeys) {
    if (spelling(key.name) == wanted) return &key;
    names.emplace_back(key.name);
  }
  const std::size_t begin = setting.key.find_first_not_of("+-");
  if (begin == std::string::npos) throw UsageError(fmt::format("'{}' names no setting", setting.key));
  const std::string plain = setting.key.substr(begin);
  const std::size_t dot = plain.find('.');
  const std::string group = plain.substr(0, dot);
  const bool is_verls = std::find(kVerlGroups.begin(), kVerlGroups.end(), group) != kVerlGroups.end();
  const bool is_near_ours = !nearest_name(plain, names).empty() || plain.starts_with("trainer.noise_injection.") ||
                            plain.starts_with("trainer.hw_error_injection.") || plain.starts_with("trainer.noisy_ops.");
  if (dot != std::string::npos && is_verls && !is_near_ours) return nullptr;
  throw UsageError(fmt::format("{}{}: this key is not known{}; `faultline convert --keys` lists those that are",
                               setting.value.position().file ? setting.value.position().text() + ": " : "", setting.key,
                               did_you_mean(plain, names)));
}

}  // namespace faultline
