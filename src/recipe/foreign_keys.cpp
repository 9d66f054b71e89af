#include "recipe/foreign_keys.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/config/config_reader.h"
#include "base/files/file.h"
#include "base/text.h"
#include "recipe/launch_script.h"

namespace faultline::recipe {
namespace {

constexpr std::array kKeys = {
    ForeignKey{"trainer.noise_injection.enabled", "aqn.enabled", "the section aqn"},
    ForeignKey{"trainer.noise_injection.sigma_start", "aqn.sigma_start", "aqn.sigma_start"},
    ForeignKey{"trainer.noise_injection.sigma_end", "aqn.sigma_end", "aqn.sigma_end"},
    ForeignKey{"trainer.noise_injection.num_stages", "aqn.num_stages", "aqn.num_stages of schedule global_decay"},
    ForeignKey{"trainer.noise_injection.epoch_aware", "aqn.epoch_aware", "aqn.schedule: epoch_aware"},
    ForeignKey{"trainer.noise_injection.stages_per_epoch", "aqn.stages_per_epoch",
               "aqn.stages_per_epoch, one more for the silent interval"},
    ForeignKey{"trainer.noise_injection.target_modules", "aqn.target_modules", "aqn.norms"},
    ForeignKey{"trainer.noise_injection.layer_types", "aqn.layer_types",
               "norms: the section aqn; linears: a rule on weights"},
    ForeignKey{"trainer.noise_injection.exclude_patterns", "aqn.exclude_patterns",
               "aqn.except; what is no norm needs none"},
    ForeignKey{"trainer.noise_injection.target_layers", "aqn.layers", "aqn.layers"},
    ForeignKey{"trainer.noise_injection.layer_multipliers", "aqn.multipliers", "aqn.layer_multipliers, or aqn.zones"},
    ForeignKey{"trainer.noise_injection.use_variable_sigma", "aqn.multipliers_enabled",
               "whether the factors of the layers count"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config", "aqn.layer_sigma_config",
               "aqn.layer_multipliers: each layer's sigma over sigma_start"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config.enabled", "aqn.multipliers_enabled",
               "whether the factors of the layers count"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config.default_multiplier", "aqn.default_multiplier",
               "aqn.elsewhere"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config.layer_multipliers", "aqn.multipliers",
               "aqn.layer_multipliers, or aqn.zones"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config.zone_schedule.enabled", "aqn.zone_enabled", "aqn.zones"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config.zone_schedule.edge_layers", "aqn.zone_edge",
               "aqn.zones with factor 1"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config.zone_schedule.middle_layers", "aqn.zone_middle",
               "aqn.zones with factors early and late"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config.zone_schedule.phase_boundary_ratio", "aqn.zone_boundary",
               "aqn.late_from"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config.zone_schedule.early_middle_mult", "aqn.zone_early",
               "zones: early"},
    ForeignKey{"trainer.noise_injection.layer_sigma_config.zone_schedule.late_middle_mult", "aqn.zone_late",
               "zones: late"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_enabled", "aqn.enabled", "the section aqn"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_epoch_aware", "aqn.epoch_aware", "aqn.schedule: epoch_aware"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_epoch_ranges", "aqn.epoch_ranges", "aqn.boundaries"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_stages_per_epoch", "aqn.stages_per_epoch",
               "aqn.stages_per_epoch, one more for the silent interval"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_target_modules", "aqn.target_modules", "aqn.norms"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_layer_types", "aqn.layer_types",
               "norms: the section aqn; linears: a rule on weights"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_exclude_patterns", "aqn.exclude_patterns",
               "aqn.except; what is no norm needs none"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_sigma_trend", "aqn.trend",
               "refused: the trainer made it from trainer.noise_injection"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_steps_per_epoch", "aqn.told",
               "nothing: the trainer tells its steps"},
    ForeignKey{"actor_rollout_ref.rollout.noise_injection_total_steps", "aqn.told_total",
               "nothing: the trainer tells its steps"},
    ForeignKey{"aqn.enabled", "aqn.enabled", "the section aqn"},
    ForeignKey{"aqn.target_layers", "aqn.layers", "aqn.layers"},
    ForeignKey{"aqn.sigma", "aqn.sigma", "aqn.sigma_start, relative; schedule constant unless another is named"},
    ForeignKey{"aqn.gamma", "aqn.sigma", "the same"},
    ForeignKey{"aqn.schedule", "aqn.schedule", "aqn.schedule"},
    ForeignKey{"trainer.hw_error_injection.enabled", "hw.enabled", "a rule hw_error"},
    ForeignKey{"trainer.hw_error_injection.error_scale", "hw.scale", "what.strength"},
    ForeignKey{"trainer.hw_error_injection.error_type", "hw.type", "what.kind, or what.format of kind quantize"},
    ForeignKey{"trainer.hw_error_injection.injection_point", "hw.surface",
               "where.surface; both: weights and inputs, two rules"},
    ForeignKey{"trainer.hw_error_injection.target_modules", "hw.modules", "where.module, one rule each"},
    ForeignKey{"trainer.hw_error_injection.target_operators", "hw.modules", "the same"},
    ForeignKey{"trainer.hw_error_injection.target_layers", "hw.layers", "where.layer"},
    ForeignKey{"trainer.hw_error_injection.exclude_modules", "hw.except", "where.except"},
    ForeignKey{"trainer.hw_error_injection.apply_during", "hw.during", "phases of the rule"},
    ForeignKey{"trainer.hw_error_injection.deadzone_threshold", "hw.threshold", "what.threshold of kind deadzone"},
    ForeignKey{"trainer.hw_error_injection.mxfp4_stochastic_rounding", "hw.stochastic", "what.rounding"},
    ForeignKey{"trainer.hw_error_injection.nvfp4_stochastic_rounding", "hw.stochastic", "what.rounding"},
    ForeignKey{"trainer.hw_error_injection.mxfp4_block_2d", "hw.block_2d", "refused: blocks run along rows"},
    ForeignKey{"trainer.hw_error_injection.use_ste", "hw.use_ste", "nothing: backward always reads the faulted weight"},
    ForeignKey{"trainer.hw_error_injection.seed", "hw.seed", "seed"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_enabled", "rollout_hw.enabled", "a rule rollout_hw_error"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.error_scale", "rollout_hw.scale", "what.strength"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.error_type", "rollout_hw.type",
               "what.kind, or what.format of kind quantize"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.injection_point", "rollout_hw.surface",
               "where.surface; both: weights and inputs, two rules"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.target_modules", "rollout_hw.modules",
               "where.module, one rule each"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.target_operators", "rollout_hw.modules",
               "the same"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.target_layers", "rollout_hw.layers", "where.layer"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.exclude_modules", "rollout_hw.except",
               "where.except"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.apply_during", "rollout_hw.during",
               "phases of the rule"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.deadzone_threshold", "rollout_hw.threshold",
               "what.threshold of kind deadzone"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.mxfp4_stochastic_rounding", "rollout_hw.stochastic",
               "what.rounding"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.nvfp4_stochastic_rounding", "rollout_hw.stochastic",
               "what.rounding"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.mxfp4_block_2d", "rollout_hw.block_2d",
               "refused: blocks run along rows"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.use_ste", "rollout_hw.use_ste",
               "nothing: backward always reads the faulted weight"},
    ForeignKey{"actor_rollout_ref.rollout.hw_error_injection_config.seed", "rollout_hw.seed", "seed"},
    ForeignKey{"trainer.noisy_ops.enabled", "ops.enabled", "a rule noisy_ops, forward and backward"},
    ForeignKey{"trainer.noisy_ops.error_scale", "ops.scale", "what.strength"},
    ForeignKey{"trainer.noisy_ops.error_type", "ops.type", "what.kind"},
    ForeignKey{"trainer.noisy_ops.deadzone_threshold", "ops.threshold", "what.threshold of kind deadzone"},
    ForeignKey{"trainer.noisy_ops.all_ops", "ops.all", "where.operator: all_ops"},
    ForeignKey{"trainer.noisy_ops.all_ops_mode", "ops.all", "where.operator: all_ops"},
    ForeignKey{"trainer.noisy_ops.target_operators", "ops.operators", "where.operator, one rule each"},
    ForeignKey{"trainer.noisy_ops.target_layers", "ops.layers", "where.layer"},
    ForeignKey{"trainer.noisy_ops.training_only", "ops.training_only", "phases: rollout false"},
    ForeignKey{"trainer.noisy_ops.skip_vllm", "ops.skip_rollout", "phases: rollout false"},
    ForeignKey{"trainer.noisy_ops.forward_only", "ops.forward_only", "phases: actor_backward false"},
    ForeignKey{"trainer.noisy_ops.backward_only", "ops.backward_only", "phases: actor_backward alone"},
    ForeignKey{"deadzone.enabled", "zone.enabled", "a rule dead_zone at a layer's output"},
    ForeignKey{"deadzone.layer", "zone.layer", "where.layer"},
    ForeignKey{"deadzone.threshold", "zone.threshold", "what.threshold"},
    ForeignKey{"deadzone.sparsity", "zone.sparsity", "extent.fraction"},
    ForeignKey{"actor_rollout_ref.rollout.deadzone_enabled", "rollout_zone.enabled",
               "a rule dead_zone at a layer's output, in rollouts"},
    ForeignKey{"actor_rollout_ref.rollout.deadzone_layer", "rollout_zone.layer", "where.layer"},
    ForeignKey{"actor_rollout_ref.rollout.deadzone_threshold", "rollout_zone.threshold", "what.threshold"},
    ForeignKey{"actor_rollout_ref.rollout.deadzone_sparsity", "rollout_zone.sparsity", "extent.fraction"},
    ForeignKey{"ground_truth_layer", "fault.layer", "where.layer of a rule planted"},
    ForeignKey{"fault_type", "fault.type", "what.kind"},
    ForeignKey{"fault_magnitude", "fault.magnitude", "the kind's strength, threshold or margin"},
    ForeignKey{"sparsity", "fault.sparsity", "extent.fraction"},
    ForeignKey{"absolute_saturation", "fault.absolute_saturation", "refused: give what.limit"},
    ForeignKey{"nondeterminism_mode", "fault.mode", "what.mode of kind nondeterministic"},
    ForeignKey{"variance_factor", "fault.factor", "what.factor of kind nondeterministic"},
    ForeignKey{"method", "fault.method", "faultline diagnose --method"},
    ForeignKey{"local_scan", "fault.local_scan", "faultline diagnose --method srdd"},
    ForeignKey{"device", "fault.device", "faultline --device"},
    ForeignKey{"model_path", "run.model", "model"},
    ForeignKey{"actor_rollout_ref.model.path", "run.model", "model"},
    ForeignKey{"actor_rollout_ref.model.lora_rank", "run.lora_rank", "train.lora.rank"},
    ForeignKey{"actor_rollout_ref.model.lora_alpha", "run.lora_alpha", "train.lora.alpha"},
    ForeignKey{"data.train_files", "run.train_files", "task.train_file"},
    ForeignKey{"data.val_files", "run.val_files", "task.test_file"},
    ForeignKey{"data.train_batch_size", "run.prompts", "train.prompts"},
    ForeignKey{"data.max_response_length", "run.max_new_tokens", "train.max_new_tokens"},
    ForeignKey{"actor_rollout_ref.rollout.n", "run.n", "train.n"},
    ForeignKey{"actor_rollout_ref.rollout.temperature", "run.temperature", "train.temperature"},
    ForeignKey{"actor_rollout_ref.actor.optim.lr", "run.lr", "train.lr"},
    ForeignKey{"actor_rollout_ref.actor.optim.weight_decay", "run.weight_decay", "train.weight_decay"},
    ForeignKey{"actor_rollout_ref.actor.grad_clip", "run.grad_clip", "train.grad_clip"},
    ForeignKey{"actor_rollout_ref.actor.ppo_mini_batch_size", "run.mini_batch", "train.updates: prompts over it"},
    ForeignKey{"actor_rollout_ref.actor.use_kl_loss", "run.use_kl_loss", "train.use_kl_loss"},
    ForeignKey{"actor_rollout_ref.actor.kl_loss_coef", "run.kl_loss_coef", "train.kl_loss_coef"},
    ForeignKey{"actor_rollout_ref.actor.kl_loss_type", "run.kl_loss_type", "train.kl_loss_type"},
    ForeignKey{"actor_rollout_ref.actor.clip_ratio_low", "run.clip_ratio_low", "train.clip_ratio_low"},
    ForeignKey{"actor_rollout_ref.actor.clip_ratio_high", "run.clip_ratio_high", "train.clip_ratio_high"},
    ForeignKey{"actor_rollout_ref.actor.clip_ratio_c", "run.clip_ratio_c", "train.clip_ratio_c"},
    ForeignKey{"actor_rollout_ref.actor.loss_agg_mode", "run.loss_agg_mode", "train.loss_agg_mode"},
    ForeignKey{"algorithm.adv_estimator", "run.algorithm", "train.algorithm: grpo"},
    ForeignKey{"algorithm.norm_adv_by_std_in_grpo", "run.norm_adv_by_std", "train.norm_adv_by_std"},
    ForeignKey{"algorithm.filter_groups.enable", "run.filter_groups", "train.filter_groups"},
    ForeignKey{"trainer.total_epochs", "run.epochs", "train.steps, aqn.epochs"},
    ForeignKey{"trainer.total_training_steps", "run.steps", "train.steps"},
    ForeignKey{"trainer.test_freq", "run.validate_every", "train.validate_every"},
    ForeignKey{"trainer.save_freq", "run.checkpoint_every", "train.checkpoint_every"},
};

// Top levels of verl's configuration: whatever else they hold is verl's own business.
constexpr std::array<std::string_view, 12> kVerlGroups = {
    "actor_rollout_ref", "algorithm",  "critic",       "custom_reward_function", "data",   "global_profiler", "hydra",
    "ray_init",          "ray_kwargs", "reward_model", "transfer_queue",         "trainer"};

constexpr std::string_view kVariables = "VERL_NOISY_OPS_";
constexpr size_t kMaxScriptBytes = size_t{1} << 20;

// A key with one of these in it is about faults or noise, whoever's it is: left unread, it would be a fault that never
// fires.
constexpr std::array<std::string_view, 7> kOurWords = {"noise_inj", "hw_error", "noisy_ops", "deadzone",
                                                       "dead_zone", "aqn",      "sigma"};

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

// {14: 1.5, 15: 1.5}: factors by layer are one value.
bool is_by_layer(const Node& map) {
  return std::all_of(map.entries().begin(), map.entries().end(), [](const Node::Entry& entry) {
    return !entry.key.empty() && entry.key.find_first_not_of("0123456789") == std::string::npos;
  });
}

void add_leaves(const Node& node, const std::string& path, std::vector<ForeignSetting>& settings) {
  if (!node.is_map() || node.size() == 0 || is_by_layer(node)) {
    settings.push_back({path, node, true});
    return;
  }
  for (const auto& entry : node.entries())
    add_leaves(entry.value, path.empty() ? entry.key : path + "." + entry.key, settings);
}

// Hydra takes {14: 1.5}; our YAML wants its keys quoted.
std::string with_quoted_numbers(const std::string& map) {
  std::string text;
  for (std::size_t i = 0; i < map.size();) {
    const bool at_key = i > 0 && (map[i - 1] == '{' || map[i - 1] == ',' || map[i - 1] == ' ');
    const std::size_t end = map.find_first_not_of("0123456789", i);
    if (at_key && end != std::string::npos && end > i && map[end] == ':') {
      text += "\"" + map.substr(i, end - i) + "\"";
      i = end;
    } else {
      text += map[i++];
    }
  }
  return text;
}

Node value_of(const std::string& text) {
  Node value = text.starts_with("{") ? parse_yaml(with_quoted_numbers(text), "command line")
               : text.starts_with("[") || text.starts_with("'") || text.starts_with("\"")
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
    if (!text.starts_with(kVariables) || equals == std::string_view::npos) continue;
    check_text(text);
    settings.push_back({std::string(text.substr(0, equals)), value_of(std::string(text.substr(equals + 1)))});
  }
  return settings;
}

std::vector<ForeignSetting> settings_of_script(const std::string& file, const std::vector<std::string>& arguments,
                                               int command) {
  const LaunchScript script = read_launch_script(read_file(file, kMaxScriptBytes), arguments, file, command);
  std::vector<ForeignSetting> settings = settings_of_arguments(script.words);
  for (const auto& [name, value] : script.variables)
    if (name.starts_with(kVariables)) settings.push_back({name, value_of(value)});
  return settings;
}

const ForeignKey* known_key(const ForeignSetting& setting) {
  const std::string wanted = spelling(setting.key);
  std::vector<std::string> names;  // of faults and noise: verl has many keys that look like its others
  for (const ForeignKey& key : kKeys) {
    if (spelling(key.name) == wanted) return &key;
    if (!key.slot.starts_with("run.")) names.emplace_back(key.name);
  }
  const std::size_t begin = setting.key.find_first_not_of("+-~");
  if (begin == std::string::npos) throw UsageError(fmt::format("'{}' names no setting", setting.key));
  const std::string plain = setting.key.substr(begin);
  const std::size_t dot = plain.find('.');
  const bool is_verls = setting.from_file ||
                        (dot != std::string::npos &&
                         std::find(kVerlGroups.begin(), kVerlGroups.end(), plain.substr(0, dot)) != kVerlGroups.end());
  const bool is_ours = std::any_of(kOurWords.begin(), kOurWords.end(),
                                   [&](std::string_view word) { return lower(plain).find(word) != std::string::npos; });
  if (is_verls && !is_ours) return nullptr;
  throw UsageError(fmt::format("{}{}: this key is not known{}; `faultline convert --keys` lists those that are",
                               setting.value.position().file ? setting.value.position().text() + ": " : "", setting.key,
                               did_you_mean(plain, names)));
}

}  // namespace faultline::recipe
