// Noise on the sampler's norms as published with QeRL and with the noise study, as the section `aqn:`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "recipe/draft.h"

namespace faultline::recipe {
namespace {

// A map {14: 1.5, …} or a list, by layer.
std::map<int64_t, double> by_layer(const ForeignSetting& setting) {
  std::map<int64_t, double> values;
  const auto add = [&](int64_t layer, const Node& value) {
    if (!value.is_number() || value.as_number() < 0)
      throw Settings::wrong(setting, "a number of 0 or more for each layer");
    values[layer] = value.as_number();
  };
  if (setting.value.is_list()) {
    for (size_t layer = 0; layer < setting.value.size(); ++layer)
      add(static_cast<int64_t>(layer), setting.value.items()[layer]);
  } else if (setting.value.is_map()) {
    for (const Node::Entry& entry : setting.value.entries()) {
      if (entry.key.empty() || entry.key.size() > 6 || entry.key.find_first_not_of("0123456789") != std::string::npos)
        throw Settings::wrong(setting, "a map from layer numbers to factors");
      add(std::stoll(entry.key), entry.value);
    }
  } else {
    throw Settings::wrong(setting, "a list with a number for each layer, or a map from layer to number");
  }
  if (values.empty()) throw Settings::wrong(setting, "at least one layer");
  return values;
}

Node zone(int64_t first, int64_t last, double early, double late) {
  return map_of(
      {{"first_layer", Node(first)}, {"last_layer", Node(last)}, {"early", Node(early)}, {"late", Node(late)}});
}

// Runs of neighbouring layers with one factor.
void add_zones(Node& zones, const std::map<int64_t, std::pair<double, double>>& factors) {
  for (auto at = factors.begin(); at != factors.end();) {
    auto end = std::next(at);
    int64_t last = at->first;
    while (end != factors.end() && end->first == last + 1 && end->second == at->second) last = end++->first;
    zones.push_back(zone(at->first, last, at->second.first, at->second.second));
    at = end;
  }
}

void set_factors(Draft& draft, Node& aqn, double sigma) {
  const Settings& settings = draft.settings;
  if (const ForeignSetting* each = settings.find("aqn.layer_sigma_config")) {
    Node factors = Node::list();
    const std::map<int64_t, double> sigmas = by_layer(*each);
    for (const auto& [layer, value] : sigmas) {
      if (layer != static_cast<int64_t>(factors.size()))
        throw Settings::wrong(*each, "the sigma of every layer, 0 to the last: a recipe has one factor for each");
      factors.push_back(Node(value / sigma));
    }
    aqn.set("layer_multipliers", std::move(factors));
    return;
  }
  const ForeignSetting* enabled = settings.find("aqn.multipliers_enabled");
  if (enabled == nullptr || !Settings::boolean(*enabled)) {
    if (settings.find("aqn.multipliers") != nullptr || settings.find("aqn.default_multiplier") != nullptr)
      draft.note("layer_sigma_config: not enabled, so its factors do not count; they did not in the old code");
    return;
  }
  const double elsewhere = settings.number("aqn.default_multiplier", 1);
  std::map<int64_t, std::pair<double, double>> factors;
  if (settings.flag("aqn.zone_enabled")) {
    const auto add = [&](const char* slot, double early, double late) {
      if (const ForeignSetting* layers = settings.find(slot))
        for (const auto& item :
             layers->value.is_list() ? layers->value.items() : throw Settings::wrong(*layers, "a list of layers")) {
          if (!item.is_integer() || item.as_integer() < 0) throw Settings::wrong(*layers, "layer numbers");
          factors.try_emplace(item.as_integer(), early, late);  // of a layer in both the edge counts
        }
    };
    add("aqn.zone_edge", 1, 1);
    add("aqn.zone_middle", settings.number("aqn.zone_early", 1), settings.number("aqn.zone_late", 0.5));
    if (factors.empty())
      throw UsageError(
          "zone_schedule: give edge_layers and middle_layers; the old defaults were those of a model with 28 layers");
    aqn.set("late_from", Node(settings.number("aqn.zone_boundary", 0.5)));
  } else if (const ForeignSetting* each = settings.find("aqn.multipliers")) {
    for (const auto& [layer, factor] : by_layer(*each)) factors[layer] = {factor, factor};
  } else {
    return;
  }
  Node zones = Node::list();
  add_zones(zones, factors);
  aqn.set("zones", std::move(zones));
  if (elsewhere != 1) aqn.set("elsewhere", Node(elsewhere));
}

// The old code's first interval of every epoch had no noise; its documents and its arithmetic differ in the middle.
void set_epochs(Draft& draft, Node& aqn, double start, double end) {
  const Settings& settings = draft.settings;
  aqn.set("stages_per_epoch", Node(static_cast<int64_t>(settings.number("aqn.stages_per_epoch", 5)) + 1));
  aqn.set("warmup_interval", Node(true));
  Node boundaries = Node::list();
  if (const ForeignSetting* ranges = settings.find("aqn.epoch_ranges"); ranges != nullptr && ranges->value.size() > 0) {
    for (const Node& range :
         ranges->value.is_list() ? ranges->value.items() : throw Settings::wrong(*ranges, "[[from, to], …]")) {
      if (!range.is_list() || range.size() != 2 || !range.items()[0].is_number() || !range.items()[1].is_number())
        throw Settings::wrong(*ranges, "[[from, to], …]");
      if (boundaries.size() == 0) boundaries.push_back(range.items()[0]);
      if (boundaries.items().back().as_number() != range.items()[0].as_number())
        throw Settings::wrong(*ranges, "epochs that begin where the one before them ends");
      boundaries.push_back(range.items()[1]);
    }
  } else {
    if (settings.find("run.epochs") == nullptr)
      draft.note("epoch_aware: trainer.total_epochs is not given; 2 epochs, as published");
    const auto epochs = static_cast<int64_t>(settings.number("run.epochs", 2));
    if (epochs < 1 || epochs > 10'000) throw UsageError("trainer.total_epochs: wanted 1 to 10000");
    for (int64_t i = 0; i <= epochs; ++i)
      boundaries.push_back(
          Node(i == 0        ? start
               : i == epochs ? end
                             : start * std::pow(end / start, static_cast<double>(i) / static_cast<double>(epochs))));
    if (epochs == 2 && start == 0.05 && end == 0.0005) {
      boundaries = Node::list();
      for (const double value : {0.05, 0.01, 0.0005}) boundaries.push_back(Node(value));
      draft.note(
          "epoch_aware: 0.05 to 0.01 and 0.01 to 0.0005, as published; the code of that study computed 0.005 for the "
          "middle: "
          "boundaries: [0.05, 0.005, 0.0005] repeats its runs");
    }
  }
  aqn.set("boundaries", std::move(boundaries));
}

// Patterns were looked for anywhere in a module's name; of a norm only its own name matters here.
Node norm_names(const Settings& settings, const char* slot) {
  Node names = Node::list();
  for (const std::string& name : settings.words(slot, {})) {
    if (name == "rmsnorm" || name == "RMSNorm" || name == "norm") continue;  // all of them
    if (name.find("norm") == std::string::npos)
      throw UsageError(fmt::format("{}: '{}' is not known: noise goes to norms, and no norm is called so",
                                   settings.find(slot)->key, name));
    names.push_back(Node(name));
  }
  return names;
}

Node excepted_norms(Draft& draft) {
  Node names = Node::list();
  for (const std::string& name : draft.settings.words("aqn.exclude_patterns", {})) {
    if (name.find("norm") != std::string::npos)
      names.push_back(Node(name));
    else if (name == "lm_head" || name == "embed_tokens" || name.starts_with("lora") || name == "router" ||
             name == "gate")
      draft.note(fmt::format("exclude_patterns: '{}' is no norm and gets no noise anyhow", name));
    else
      throw UsageError(fmt::format("{}: '{}' is not known: give names of norms (input_layernorm), or aqn.layers",
                                   draft.settings.find("aqn.exclude_patterns")->key, name));
  }
  return names;
}

// Which kinds of layers: norms, linears or both.
std::pair<bool, bool> layer_types(const Settings& settings) {
  bool norms = false, linears = false;
  for (const std::string& type : settings.words("aqn.layer_types", {"rmsnorm"})) {
    const std::string kind =
        chosen(settings, "aqn.layer_types", type,
               {{"rmsnorm", "norm"}, {"norm", "norm"}, {"layernorm", "norm"}, {"linear", "linear"}});
    (kind == "norm" ? norms : linears) = true;
  }
  return {norms || !linears, linears};
}

Node schedule_of(Draft& draft, const std::string& schedule, const char* key, double sigma) {
  const Settings& settings = draft.settings;
  Node noise = map_of({{key, Node(schedule)}});
  if (schedule == "epoch_aware") {
    set_epochs(draft, noise, sigma, settings.number("aqn.sigma_end", 0.0005));
  } else {
    noise.set("sigma_start", Node(sigma));
    if (schedule != "constant") noise.set("sigma_end", Node(settings.number("aqn.sigma_end", 0.0005)));
    if (schedule == "global_decay")
      noise.set("num_stages", Node(static_cast<int64_t>(settings.number("aqn.num_stages", 10))));
  }
  set_factors(draft, noise, sigma);
  return noise;
}

}  // namespace

void add_norm_noise(Draft& draft) {
  const Settings& settings = draft.settings;
  if (!settings.is_on("aqn")) return;
  if (settings.find("aqn.trend") != nullptr && settings.find("aqn.trend")->value.size() > 0)
    throw UsageError(
        "noise_injection_sigma_trend: the trainer made it from trainer.noise_injection; hand over sigma_start, "
        "sigma_end and num_stages");
  const bool epoch_aware = settings.flag("aqn.epoch_aware"), one_sigma = settings.find("aqn.sigma") != nullptr;
  const std::string schedule = chosen(settings, "aqn.schedule",
                                      settings.word("aqn.schedule", epoch_aware ? "epoch_aware"
                                                                    : one_sigma ? "constant"
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
  if (!(sigma > 0)) throw UsageError("aqn: sigma must be above 0; leave the noise out for a run without it");
  // Where: on norms, as the section `aqn`; on linears, as a rule of the plan.
  const auto [norms, linears] = layer_types(settings);
  const Node only = norm_names(settings, "aqn.target_modules"), except = excepted_norms(draft);
  if (linears) {
    Node rollout = phases_of(true, false, false);
    rollout.set("eval", Node("clean"));
    add_rule(draft, "aqn_linears",
             map_of({{"operator", Node("matmul")},
                     {"layer", settings.layers("aqn.layers")},
                     {"surface", Node("weight")},
                     {"except", Node::list()}}),
             map_of({{"kind", Node("absolute_gaussian")}, {"strength", Node(sigma)}}),
             map_of({{"schedule", schedule_of(draft, schedule, "kind", sigma)}, {"phases", std::move(rollout)}}));
    draft.faults.items().back().find("where")->find("except")->push_back(Node("lm_head"));
    draft.note("layer_types linear: noise on the weights of linears while the policy samples, as a rule of the plan");
  }
  if (!norms) return;
  // The section, with the scale that the old setting meant.
  Node aqn = schedule_of(draft, schedule, "schedule", sigma);
  if (only.size() > 0) aqn.set("norms", only);
  if (except.size() > 0) aqn.set("except", except);
  if (one_sigma) {
    aqn.set("sigma_scale", Node("relative"));
    draft.note(
        "aqn.sigma: a share of each value, as its gamma was: sigma_scale relative, on the norms of these layers; "
        "sites: layer_output puts it on what the layers give");
  } else {
    draft.note(
        "aqn: sigma is absolute, as it was; for norms with small weights (SmolLM2: median 0.27) choose sigma_scale: "
        "relative");
  }
  aqn.set("layers", settings.layers("aqn.layers"));
  draft.recipe.set("aqn", std::move(aqn));
}

}  // namespace faultline::recipe
