// Faults of the systems that came before, as rules. Their meaning is kept: a dead zone takes the whole tensor's
// maximum and stops the gradient, what a pattern of names left out is left out here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "recipe/draft.h"

namespace faultline::recipe {
namespace {

const Choices kErrorTypes = {{"gaussian", "relative_gaussian"},
                             {"relative_gaussian", "relative_gaussian"},
                             {"absolute_gaussian", "absolute_gaussian"},
                             {"systematic", "systematic_bias"},
                             {"systematic_bias", "systematic_bias"},
                             {"deadzone", "deadzone"},
                             {"dead_zone", "deadzone"},
                             {"mxfp4", "mxfp4"},
                             {"nvfp4", "nvfp4_single"},
                             {"fp8", "fp8_e4m3"}};

bool is_format(const std::string& kind) { return kind.find("fp") != std::string::npos; }

Node dead_zone(double threshold) {
  return map_of({{"kind", Node("deadzone")}, {"threshold", Node(threshold)}, {"axis", Node("tensor")}});
}

void note_dead_zone(Draft& draft) {
  draft.note(
      "deadzone: axis tensor as in the old code, one maximum for the whole tensor; what else is in the batch then "
      "moves "
      "the threshold, axis: token (each token's own maximum) is the choice for a new study");
}

Node format_of(Draft& draft, const std::string& part, const std::string& kind, const std::string& surface) {
  Node what = map_of({{"kind", Node("quantize")}, {"format", Node(kind)}});
  if (draft.settings.flag(part + ".block_2d"))
    throw UsageError(
        "mxfp4_block_2d: blocks of 32x32 are not known here, they run along rows of 32; leave the key out for these");
  if (draft.settings.flag(part + ".stochastic")) what.set("rounding", Node("stochastic"));
  if (kind == "mxfp4")
    draft.note("mxfp4: a value half way between two goes to the even one, as OCP has it; the old code took the larger");
  if (kind == "nvfp4_single" && surface != "input")
    draft.note(
        "nvfp4: blocks of 16 run along a weight's rows, as the hardware has them; the old code ran down its columns");
  if (kind == "nvfp4_single")
    draft.note("nvfp4: without the second scale of the tensor, as in the old code; format: nvfp4 has it");
  return what;
}

// Patterns were looked for anywhere in a module's name: layers.2 also left out layers.20 to 29.
Node exceptions(Draft& draft, const std::string& part, const std::string& kind) {
  Node except = Node::list();
  const std::vector<std::string> usual = is_format(kind) || part == "hw"
                                             ? std::vector<std::string>{"lm_head", "embed_tokens"}
                                             : std::vector<std::string>{};
  for (const std::string& pattern : draft.settings.words(part + ".except", usual)) {
    const std::string layer = pattern.starts_with("layers.") ? pattern.substr(7) : "";
    if (pattern == "embed_tokens" || pattern == "router" || pattern == "gate") continue;  // never faulted unless named
    if (pattern.starts_with("lora")) continue;
    if (pattern == "base_layer") {
      draft.note("base_layer: left out, because a layer that an adapter wraps is faulted once here");
    } else if (!layer.empty() && layer.find_first_not_of("0123456789") == std::string::npos) {
      except.push_back(Node(layer));
      if (layer != "0" && layer.size() == 1)
        draft.note(fmt::format("{}: the old code also left out layers {}0 to {}9, whose names begin alike", pattern,
                               layer, layer));
    } else {
      except.push_back(Node(pattern == "lm_head" ? pattern : "*" + pattern + "*"));
    }
  }
  return except;
}

// Whether a module is named by role or by a part of its path.
Node module_of(const std::string& name) {
  static const Choices kRoles = {{"rmsnorm", "rmsnorm"}, {"layernorm", "*layernorm"}, {"linear", "*_proj"}};
  const auto role = kRoles.find(name);
  if (role != kRoles.end()) return Node(role->second);
  return Node(name);
}

std::vector<std::string> modules_of(const Settings& settings, const std::string& part, bool quantised) {
  static const std::map<std::string, std::vector<std::string>> kModes = {{"minimal", {"rmsnorm"}},
                                                                         {"mlp", {"rmsnorm", "down_proj"}},
                                                                         {"both", {"rmsnorm", "linear"}},
                                                                         {"all", {"rmsnorm", "linear"}}};
  std::vector<std::string> modules = settings.words(part + ".modules", {"rmsnorm"});
  if (modules.size() == 1 && kModes.contains(modules[0])) modules = kModes.at(modules[0]);
  if (quantised && modules == std::vector<std::string>{"rmsnorm"}) modules = {"linear"};
  return modules;
}

struct HwPart {
  std::string slots, rule;
  std::string surface, during;  // unless given
};

Node where_of(const std::string& module, const std::string& surface, const Node& layers, const Node& except) {
  Node where = surface == "weight" ? map_of({{"operator", Node("matmul")}, {"surface", Node(surface)}})
                                   : map_of({{"module", module_of(module)}, {"surface", Node(surface)}});
  where.set("layer", layers);
  if (except.size() > 0) where.set("except", except);
  return where;
}

void add_dead_layer(Draft& draft, const HwPart& part, const std::string& surface, Node phases) {
  note_dead_zone(draft);
  if (draft.settings.layers(part.slots + ".layers") != Node("all"))
    draft.note(
        "target_layers with deadzone: the old filter wanted a dot behind the layer's number, met no decoder layer and "
        "left those runs clean; here it acts");
  add_rule(draft, part.rule,
           map_of({{"module", Node("layer_output")},
                   {"layer", draft.settings.layers(part.slots + ".layers")},
                   {"surface", Node(surface)}}),
           dead_zone(draft.settings.number(part.slots + ".threshold", 0.01)),
           map_of({{"gradient", Node("masked")}, {"phases", std::move(phases)}}));
}

void add_hw_part(Draft& draft, const HwPart& part) {
  const Settings& settings = draft.settings;
  if (!settings.is_on(part.slots)) return;
  const std::string kind =
      chosen(settings, part.slots + ".type", settings.word(part.slots + ".type", "relative_gaussian"), kErrorTypes);
  const std::string point =
      chosen(settings, part.slots + ".surface", settings.word(part.slots + ".surface", part.surface),
             {{"input", "input"}, {"output", "output"}, {"weight", "weight"}, {"both", "both"}});
  const std::string during =
      chosen(settings, part.slots + ".during", settings.word(part.slots + ".during", part.during),
             {{"both", "both"}, {"rollout", "rollout"}, {"training", "training"}, {"actor", "training"}});
  const bool rollout = during != "training", training = during != "rollout";
  if (kind == "deadzone") {
    if (point == "weight" || point == "both")
      throw UsageError(fmt::format("{}.injection_point: a dead zone acts on what a layer gives or takes; got '{}'",
                                   part.slots, point));
    return add_dead_layer(draft, part, point, phases_of(rollout, training, false));
  }
  if (!is_format(kind) && (point == "weight" || point == "both"))
    throw UsageError(fmt::format(
        "injection_point '{}' was for mxfp4 and nvfp4 alone; with error_type {} it did nothing", point, kind));
  if (const ForeignSetting* ste = settings.find(part.slots + ".use_ste"); ste != nullptr && !Settings::boolean(*ste))
    draft.note("use_ste: false let backward read the clean weights again; here it always reads the faulted ones");
  const Node except = exceptions(draft, part.slots, kind);
  const std::vector<std::string> modules = modules_of(settings, part.slots, is_format(kind));
  std::vector<std::string> surfaces = {point};
  if (point == "both") surfaces = {"weight", "input"};
  for (const std::string& surface : surfaces) {
    Node what = map_of({{"kind", Node(kind)}, {"strength", Node(settings.number(part.slots + ".scale", 1e-5))}});
    if (is_format(kind)) what = format_of(draft, part.slots, kind, surface);
    for (const std::string& module : modules) {
      if (surface == "weight" && module != "linear")
        throw UsageError(fmt::format(
            "target_modules '{}': weights are quantised in all linears of a layer; give ['linear']", module));
      const std::string name =
          part.rule + (surfaces.size() > 1 ? "_" + surface : "") + (modules.size() > 1 ? "_" + module : "");
      // What faults a weight going forward is what backward multiplies by.
      add_rule(draft, name, where_of(module, surface, settings.layers(part.slots + ".layers"), except), what,
               map_of({{"phases", phases_of(rollout, training, training && surface == "weight")}}));
    }
  }
  if (std::find(modules.begin(), modules.end(), "linear") != modules.end() && point != "weight")
    draft.note(
        "linear: modules whose names end in _proj; products of attention, which are no modules, stay clean as they "
        "were");
}

}  // namespace

void add_hw_errors(Draft& draft) {
  const Settings& settings = draft.settings;
  if (settings.find("hw.seed") != nullptr)
    draft.recipe.set("seed", Node(static_cast<std::int64_t>(settings.number("hw.seed", 0))));
  add_hw_part(draft, {"hw", "hw_error", "input", "rollout"});
  // The trainer hands its own settings to the rollout, where it has any.
  const bool from_trainer = settings.is_on("hw") && settings.word("hw.during", "rollout") != "training";
  if (from_trainer && settings.is_on("rollout_hw")) {
    if (settings.word("hw.type", "relative_gaussian") != settings.word("rollout_hw.type", "relative_gaussian") ||
        settings.layers("hw.layers") != settings.layers("rollout_hw.layers") ||
        settings.number("hw.threshold", 0.01) != settings.number("rollout_hw.threshold", 0.01))
      throw UsageError(
          "trainer.hw_error_injection acts in rollouts too and differs from rollout.hw_error_injection_config: which "
          "one is "
          "meant? Leave one out, or set trainer.hw_error_injection.apply_during=training");
    return;
  }
  add_hw_part(draft, {"rollout_hw", "rollout_hw_error", "output", "rollout"});
}

void add_noisy_operators(Draft& draft) {
  const Settings& settings = draft.settings;
  if (!settings.is_on("ops")) return;
  const std::string kind = chosen(settings, "ops.type", settings.word("ops.type", "relative_gaussian"), kErrorTypes);
  if (is_format(kind)) throw UsageError("trainer.noisy_ops.error_type: formats are set by trainer.hw_error_injection");
  const ForeignSetting* by_key = settings.find("ops.scale");
  const double usual = by_key == nullptr && settings.find("ops.enabled") != nullptr &&
                               settings.find("ops.enabled")->key.starts_with("VERL_")
                           ? 1e-4
                           : 1e-5;
  if (by_key == nullptr && kind != "deadzone")
    draft.note(fmt::format("noisy_ops: no error_scale is given, so it is the old default, {}", usual));
  Node what = map_of({{"kind", Node(kind)}, {"strength", Node(settings.number("ops.scale", usual))}});
  const bool forward_only = settings.flag("ops.forward_only"), backward_only = settings.flag("ops.backward_only");
  const bool forward = forward_only || !backward_only, backward = backward_only || !forward_only;  // both set: both act
  const bool rollout = forward && !settings.flag("ops.training_only") && !settings.flag("ops.skip_rollout");
  Node more = map_of({{"phases", phases_of(rollout, forward, backward)}});
  if (kind == "deadzone") {
    what = dead_zone(settings.number("ops.threshold", 0.01));
    more = map_of({{"gradient", Node("masked")}, {"phases", phases_of(rollout, true, false)}});
    note_dead_zone(draft);
  }
  std::vector<std::string> operators =
      settings.words("ops.operators", {settings.flag("ops.all") ? "all_ops" : "matmul"});
  for (std::string& name : operators) {
    if (name == "all") name = "all_ops";
    if (name == "linear" || name == "bmm") name = "matmul";
    if (name == "silu" || name == "gelu") name = "activation";
    if (name == "rms_norm" || name == "layer_norm") name = "norm";
  }
  std::sort(operators.begin(), operators.end());
  operators.erase(std::unique(operators.begin(), operators.end()), operators.end());
  for (const std::string& name : operators) {
    Node where = map_of({{"operator", Node(name)}, {"layer", settings.layers("ops.layers")}});
    if (kind == "deadzone") where.set("surface", Node("output"));
    add_rule(draft, operators.size() == 1 ? "noisy_ops" : "noisy_ops_" + name, std::move(where), what, more);
  }
  draft.note(
      "noisy_ops: matmul also reaches mm, addmm, bmm and @ in forward and backward, where the old patch of "
      "torch.matmul reached some of them only");
}

void add_dead_zone(Draft& draft) {
  const Settings& settings = draft.settings;
  const bool everywhere = settings.is_on("zone");
  const std::string part = everywhere ? "zone" : "rollout_zone";
  if (!settings.is_on(part)) return;
  if (everywhere && settings.is_on("rollout_zone"))
    for (const char* key : {".layer", ".threshold", ".sparsity"})
      if (const ForeignSetting *one = settings.find("zone" + std::string(key)),
          *other = settings.find("rollout_zone" + std::string(key));
          one != nullptr && other != nullptr && !(one->value == other->value))
        throw UsageError(fmt::format("{} is {} and {} is {}: which one is meant?", one->key, describe(one->value),
                                     other->key, describe(other->value)));
  if (settings.find(part + ".layer") == nullptr)
    throw UsageError("deadzone.layer is missing: which layer has the dead zone?");
  Node more = map_of({{"gradient", Node("masked")}, {"phases", phases_of(true, everywhere, false)}});
  const double sparsity = settings.number(part + ".sparsity", 1);
  if (sparsity > 0 && sparsity < 1)
    more.set("extent", map_of({{"fraction", Node(sparsity)}, {"structure", Node("channel")}}));
  add_rule(
      draft, "dead_zone",
      map_of(
          {{"module", Node("layer_output")}, {"layer", settings.layers(part + ".layer")}, {"surface", Node("output")}}),
      dead_zone(settings.number(part + ".threshold", 0.01)), std::move(more));
  note_dead_zone(draft);
}

namespace {

Node planted_nondeterminism(Draft& draft, double& offset) {
  const Settings& settings = draft.settings;
  const std::string mode = chosen(settings, "fault.mode", settings.word("fault.mode", "amplified"),
                                  {{"amplified", "amplified"},
                                   {"suppressed", "suppressed"},
                                   {"inconsistent", "inconsistent"},
                                   {"biased", "biased"},
                                   {"correlated", "correlated"}});
  const double factor = settings.number("fault.factor", 5);
  if (factor <= 0) throw UsageError("variance_factor: wanted a number above 0");
  Node what = map_of({{"kind", Node("nondeterministic")}, {"axis", Node("tensor")}});
  what.set("factor", Node(mode == "amplified"      ? factor
                          : mode == "suppressed"   ? 1 / factor
                          : mode == "inconsistent" ? 2.55
                                                   : 1));
  if (mode == "inconsistent" || mode == "correlated") what.set("mode", Node(mode));
  if (mode == "inconsistent")
    draft.note("inconsistent: a factor from 0 to 5.1 in each call; the old code drew from 0.1 to 5.1");
  if (mode == "biased") offset = 0.05 * factor;
  return what;
}

}  // namespace

void add_planted_fault(Draft& draft) {
  const Settings& settings = draft.settings;
  if (settings.find("fault.layer") == nullptr) {
    if (settings.find("fault.type") != nullptr || settings.find("fault.magnitude") != nullptr)
      throw UsageError(
          "a planted fault needs --ground_truth_layer; without it the script looked for faults that are there: "
          "`faultline diagnose`");
    return;
  }
  const std::string type = chosen(settings, "fault.type", settings.word("fault.type", "dead_zone"),
                                  {{"dead_zone", "deadzone"},
                                   {"deadzone", "deadzone"},
                                   {"saturation", "saturate"},
                                   {"bias", "offset"},
                                   {"noise", "scaled_gaussian"},
                                   {"spike", "spike"},
                                   {"non_determinism", "nondeterministic"},
                                   {"gain", "gain"}});
  const double magnitude = settings.number("fault.magnitude", 0.3);
  if (settings.flag("fault.absolute_saturation"))
    throw UsageError(
        "absolute_saturation: the old limit was what the first forward happened to have; give a rule with "
        "saturate(limit=…)");
  // What: each type with its magnitude in our terms.
  double offset = 0;
  Node what = map_of({{"kind", Node(type)}});
  if (type == "deadzone") what = dead_zone(magnitude);
  if (type == "saturate") what = map_of({{"kind", Node(type)}, {"margin", Node(magnitude)}, {"axis", Node("tensor")}});
  if (type == "offset") what = map_of({{"kind", Node(type)}, {"strength", Node(magnitude)}, {"axis", Node("tensor")}});
  if (type == "gain") what.set("strength", Node(magnitude));
  if (type == "scaled_gaussian")
    what = map_of(
        {{"kind", Node(type)}, {"strength", Node(magnitude)}, {"scale", Node("mean_abs")}, {"axis", Node("tensor")}});
  if (type == "spike")
    what = map_of({{"kind", Node(type)},
                   {"probability", Node(0.01 * magnitude)},
                   {"factor", Node(10.0)},
                   {"axis", Node("tensor")}});
  if (type == "nondeterministic") what = planted_nondeterminism(draft, offset);
  // Where: the output of the layer, or a share of its channels.
  Node more = Node::map();
  const double sparsity = settings.number("fault.sparsity", 1);
  if (sparsity > 0 && sparsity < 1)
    more.set("extent", map_of({{"fraction", Node(sparsity)}, {"structure", Node("channel")}}));
  const Node where = map_of(
      {{"module", Node("layer_output")}, {"layer", settings.layers("fault.layer")}, {"surface", Node("output")}});
  add_rule(draft, "planted", where, std::move(what), more);
  if (offset != 0)
    add_rule(draft, "planted_bias", where,
             map_of({{"kind", Node("offset")}, {"strength", Node(offset)}, {"axis", Node("tensor")}}), more);
  if (type == "deadzone") note_dead_zone(draft);
}

}  // namespace faultline::recipe
