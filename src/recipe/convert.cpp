#include "recipe/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "recipe/foreign_settings.h"
#include "recipe/recipe.h"

namespace faultline {
namespace {

using Choices = std::map<std::string, std::string>;

std::string chosen(const Settings& settings, const std::string& slot, const std::string& word, const Choices& choices) {
  const auto found = choices.find(word);
  if (found != choices.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, meaning] : choices) names.push_back(name);
  const ForeignSetting* setting = settings.find(slot);
  throw UsageError(fmt::format("{}: '{}' is not known{}; known are {}", setting == nullptr ? slot : setting->key, word,
                               did_you_mean(word, names), fmt::join(names, ", ")));
}

Node map_of(std::initializer_list<std::pair<const char*, Node>> entries) {
  Node map = Node::map();
  for (const auto& [key, value] : entries) map.set(key, value);
  return map;
}

const Choices kErrorTypes = {{"gaussian", "relative_gaussian"}, {"relative_gaussian", "relative_gaussian"},
                             {"systematic", "systematic_bias"}, {"systematic_bias", "systematic_bias"},
                             {"deadzone", "deadzone"},          {"dead_zone", "deadzone"}};

Node what_of(const Settings& settings, const std::string& part, double scale, std::vector<std::string>& notes) {
  const std::string kind =
      chosen(settings, part + ".type", settings.word(part + ".type", "relative_gaussian"), kErrorTypes);
  if (kind == "deadzone") {
    notes.emplace_back(
        "deadzone: the maximum is taken for each token; the old code took the whole tensor's (axis: tensor)");
    return map_of({{"kind", Node(kind)}, {"threshold", Node(settings.number(part + ".threshold", 0.01))}});
  }
  if (scale <= 3e-4)
    notes.push_back(
        fmt::format("strength {} changes nothing in bf16 with nearest rounding, so rounding is stochastic; "
                    "the old code rounded to nearest",
                    scale));
  return map_of({{"kind", Node(kind)}, {"strength", Node(scale)}});
}

void add_rule(Node& faults, const std::string& name, Node where, Node what, Node more = Node::map()) {
  Node rule = map_of({{"name", Node(name)}, {"where", std::move(where)}, {"what", std::move(what)}});
  const Node* strength = rule.at("what").find("strength");
  if (strength != nullptr && strength->as_number() <= 3e-4 && strength->as_number() > 0)
    rule.set("rounding", Node("stochastic"));
  for (const auto& entry : more.entries()) rule.set(entry.key, entry.value);
  faults.push_back(std::move(rule));
}

Node phases_of(bool rollout, bool training, bool backward) {
  return map_of({{"rollout", Node(rollout)},
                 {"actor_forward", Node(training)},
                 {"actor_backward", Node(backward)},
                 {"eval", Node("both")}});
}

void convert_hw_error(const Settings& settings, Node& faults, std::vector<std::string>& notes) {
  if (!settings.is_on("hw")) return;
  const Node what = what_of(settings, "hw", settings.number("hw.scale", 1e-5), notes);
  const std::string surface =
      chosen(settings, "hw.surface", settings.word("hw.surface", "input"), {{"input", "input"}, {"output", "output"}});
  const std::string during =
      chosen(settings, "hw.during", settings.word("hw.during", "both"),
             {{"both", "both"}, {"rollout", "rollout"}, {"training", "training"}, {"actor", "training"}});
  std::vector<std::string> modules = settings.words("hw.modules", {"rmsnorm"});
  if (modules == std::vector<std::string>{"minimal"}) modules = {"rmsnorm"};
  if (modules == std::vector<std::string>{"mlp"}) modules = {"rmsnorm", "down_proj"};
  for (const std::string& module : modules) {
    Node where = module == "linear" ? map_of({{"operator", Node("matmul")}, {"surface", Node(surface)}})
                                    : map_of({{"module", Node(module)}, {"surface", Node(surface)}});
    where.set("layer", settings.layers("hw.layers"));
    Node more = map_of({{"phases", phases_of(during != "training", during != "rollout", false)}});
    add_rule(faults, modules.size() == 1 ? "hw_error" : "hw_error_" + module, std::move(where), what, std::move(more));
  }
}

void convert_noisy_ops(const Settings& settings, Node& faults, std::vector<std::string>& notes) {
  if (!settings.is_on("ops")) return;
  const Node what = what_of(settings, "ops", settings.number("ops.scale", 0.05), notes);
  const ForeignSetting* all = settings.find("ops.all");
  std::vector<std::string> operators =
      settings.words("ops.operators", {all != nullptr && Settings::boolean(*all) ? "all_ops" : "matmul"});
  for (std::string& name : operators) {
    if (name == "all") name = "all_ops";
    if (name == "linear" || name == "bmm") name = "matmul";
    if (name == "silu" || name == "gelu") name = "activation";
    if (name == "rms_norm" || name == "layer_norm") name = "norm";
  }
  std::sort(operators.begin(), operators.end());
  operators.erase(std::unique(operators.begin(), operators.end()), operators.end());
  for (const std::string& name : operators) {
    add_rule(faults, operators.size() == 1 ? "noisy_ops" : "noisy_ops_" + name,
             map_of({{"operator", Node(name)}, {"layer", settings.layers("ops.layers")}}), what,
             map_of({{"phases", phases_of(true, true, true)}}));
  }
  notes.emplace_back(
      "noisy_ops: matmul also reaches mm, addmm, bmm and @ in forward and backward, where the old patch of "
      "torch.matmul reached some of them only");
}

void convert_dead_zone(const Settings& settings, Node& faults, std::vector<std::string>& notes) {
  if (!settings.is_on("zone")) return;
  if (settings.find("zone.layer") == nullptr)
    throw UsageError("deadzone.layer is missing: which layer has the dead zone?");
  Node more = map_of({{"gradient", Node("masked")}, {"phases", phases_of(true, true, true)}});
  const double sparsity = settings.number("zone.sparsity", 1);
  if (sparsity > 0 && sparsity < 1) more.set("extent", map_of({{"fraction", Node(sparsity)}}));
  add_rule(
      faults, "dead_zone",
      map_of({{"module", Node("layer_output")}, {"layer", settings.layers("zone.layer")}, {"surface", Node("output")}}),
      map_of({{"kind", Node("deadzone")}, {"threshold", Node(settings.number("zone.threshold", 0.01))}}),
      std::move(more));
  notes.emplace_back(
      "deadzone: the maximum is taken for each token; the old code took the whole tensor's (axis: tensor)");
}

void convert_planted_fault(const Settings& settings, Node& faults) {
  if (!settings.has_any("fault.")) return;
  const ForeignSetting* type = settings.find("fault.type");
  const ForeignSetting* layer = settings.find("fault.layer");
  if (type == nullptr || layer == nullptr)
    throw UsageError("a planted fault needs --fault_type and --ground_truth_layer");
  const std::string kind = chosen(settings, "fault.type", settings.word("fault.type", ""),
                                  {{"dead_zone", "deadzone"},
                                   {"deadzone", "deadzone"},
                                   {"saturation", "saturate"},
                                   {"bias", "offset"},
                                   {"noise", "scaled_gaussian"},
                                   {"gain", "gain"}});
  const double magnitude = settings.number("fault.magnitude", 0.3);
  const char* parameter = kind == "deadzone" ? "threshold" : kind == "saturate" ? "margin" : "strength";
  Node what = map_of({{"kind", Node(kind)}, {parameter, Node(magnitude)}});
  if (kind == "scaled_gaussian") what.set("scale", Node("mean_abs"));
  add_rule(
      faults, "planted",
      map_of(
          {{"module", Node("layer_output")}, {"layer", settings.layers("fault.layer")}, {"surface", Node("output")}}),
      std::move(what));
}

void check_norms_only(const Settings& settings) {
  for (const char* slot : {"aqn.target_modules", "aqn.layer_types"}) {
    for (const std::string& name : settings.words(slot, {"rmsnorm"})) {
      (void)chosen(settings, slot, name,
                   {{"rmsnorm", ""},
                    {"norm", ""},
                    {"RMSNorm", ""},
                    {"layernorm", ""},
                    {"input_layernorm", ""},
                    {"post_attention_layernorm", ""}});
    }
  }
  for (const std::string& name : settings.words("aqn.exclude_patterns", {})) {
    (void)chosen(settings, "aqn.exclude_patterns", name,
                 {{"router", ""}, {"gate", ""}, {"lm_head", ""}, {"lora", ""}, {"embed_tokens", ""}});
  }
}

// Each layer's own sigma, as a list or as {0: …, 1: …}: factors of sigma_start.
Node multipliers(const ForeignSetting& setting, double sigma) {
  std::vector<double> sigmas;
  if (setting.value.is_list()) {
    for (const Node& item : setting.value.items()) {
      if (!item.is_number()) throw Settings::wrong(setting, "a number for each layer");
      sigmas.push_back(item.as_number());
    }
  } else if (setting.value.is_map()) {
    for (std::size_t layer = 0; layer < setting.value.size(); ++layer) {
      const Node* item = setting.value.find(std::to_string(layer));
      if (item == nullptr || !item->is_number())
        throw Settings::wrong(setting, "the sigma of every layer, 0 to the last: a recipe has one factor for each");
      sigmas.push_back(item->as_number());
    }
  } else {
    throw Settings::wrong(setting, "a list of sigmas, or a map from layer to sigma");
  }
  Node factors = Node::list();
  for (const double each : sigmas) factors.push_back(Node(each / sigma));
  return factors;
}

void convert_aqn(const Settings& settings, Node& recipe, std::vector<std::string>& notes) {
  if (!settings.is_on("aqn")) return;
  check_norms_only(settings);
  const ForeignSetting* by_epoch = settings.find("aqn.epoch_aware");
  const bool epoch_aware = by_epoch != nullptr && Settings::boolean(*by_epoch);
  const bool has_one_sigma = settings.find("aqn.sigma") != nullptr;
  const std::string schedule = chosen(settings, "aqn.schedule",
                                      settings.word("aqn.schedule", epoch_aware     ? "epoch_aware"
                                                                    : has_one_sigma ? "constant"
                                                                                    : "global_decay"),
                                      {{"constant", "constant"},
                                       {"fixed", "constant"},
                                       {"linear", "linear"},
                                       {"cosine", "cosine"},
                                       {"exponential", "global_decay"},
                                       {"decay", "global_decay"},
                                       {"global_decay", "global_decay"},
                                       {"epoch_aware", "epoch_aware"}});
  const double sigma = settings.number("aqn.sigma", settings.number("aqn.sigma_start", 0.05));
  Node aqn = map_of({{"schedule", Node(schedule)}, {"sigma_start", Node(sigma)}});
  if (schedule != "constant") aqn.set("sigma_end", Node(settings.number("aqn.sigma_end", 0.0005)));
  if (schedule == "global_decay")
    aqn.set("num_stages", Node(static_cast<std::int64_t>(settings.number("aqn.num_stages", 10))));
  if (schedule == "epoch_aware")
    aqn.set("stages_per_epoch", Node(static_cast<std::int64_t>(settings.number("aqn.stages_per_epoch", 5))));
  if (const ForeignSetting* each = settings.find("aqn.layer_sigma_config"))
    aqn.set("layer_multipliers", multipliers(*each, sigma));
  aqn.set("layers", settings.layers("aqn.layers"));
  recipe.set("aqn", std::move(aqn));
  notes.emplace_back(
      "aqn: sigma is absolute, as it was; for norms with small weights (SmolLM2: median 0.27) choose "
      "sigma_scale: relative");
}

}  // namespace

Conversion convert_settings(const std::vector<ForeignSetting>& given) {
  Conversion result;
  const Settings settings(given, result.left);
  Node faults = Node::list();
  convert_hw_error(settings, faults, result.notes);
  convert_noisy_ops(settings, faults, result.notes);
  convert_dead_zone(settings, faults, result.notes);
  convert_planted_fault(settings, faults);
  Node recipe = Node::map();
  if (faults.size() > 0) recipe.set("faults", std::move(faults));
  convert_aqn(settings, recipe, result.notes);
  if (recipe.size() == 0)
    throw UsageError(
        "nothing about faults or noise is switched on in these settings; `faultline convert --keys` lists the keys "
        "that are known");
  (void)parse_recipe(to_yaml(recipe), {});  // what it says must be a recipe
  result.recipe = std::move(recipe);
  return result;
}

}  // namespace faultline
