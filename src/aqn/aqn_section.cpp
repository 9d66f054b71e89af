#include "aqn/aqn_section.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/files/file.h"
#include "base/schedule/schedule.h"

namespace faultline::aqn {
namespace {

constexpr size_t kMaxVerdictBytes = size_t{1} << 24;

Schema with_noise_fields(const Schema& schedule) {
  const Schema verdict = Schema::map().field("from_verdict", Schema::string({.min = 1}),
                                             {.required = true, .doc = "what `faultline diagnose --out` wrote"});
  return schedule
      .field("sites", Schema::choice({"norm_weight", "layer_output", "matmul_output"}),
             {.default_value = Node("norm_weight"), .doc = "what carries the noise while the policy samples"})
      .field("sigma_scale", Schema::choice({"absolute", "relative", "row"}),
             {.default_value = Node("absolute"),
              .doc = "relative: sigma times |x|; row: times the row's standard deviation (activations only)"})
      .field("order", Schema::choice({"before", "after"}),
             {.doc = "activations only: before the faults of the same site (the default) or after them"})
      .field("exclude_router_input", Schema::boolean(),
             {.default_value = Node(false), .doc = "mixtures of experts: every norm but the one that the router reads"})
      .field("norms", Schema::list(Schema::string({.min = 1}), {.min = 1}),
             {.doc = "names of the norms that carry it: [post_attention_layernorm]; default: all of a dense model's"})
      .field("except", Schema::list(Schema::string({.min = 1}), {.min = 1}), {.doc = "names of norms that do not"})
      .field("layers", Schema::any_of({site::layers_schema(), verdict}).described_as("layers, or {from_verdict: FILE}"),
             {.default_value = Node("all"), .doc = "all norms, those of some layers, or of the diagnosed ones"})
      .field("force", Schema::boolean(),
             {.default_value = Node(false), .doc = "even where noisy rollouts lose a fifth of the accuracy"});
}

// The layer most accused of a diagnosis, or a plain list {"layers": [15]}.
Json layers_named(const Json& json, const Node& from) {
  const std::string& file = from.as_string();
  if (json.contains("layers")) {
    if (!json["layers"].is_array() || json["layers"].empty())
      throw from.error(fmt::format("{}: \"layers\" must be a list with at least one layer", file));
    return json["layers"];
  }
  if (!json.contains("candidates") || !json["candidates"].is_array())
    throw from.error(
        fmt::format("{} has neither candidates nor layers; is it a verdict of `faultline diagnose --out`?", file));
  if (json["candidates"].empty())
    throw from.error(fmt::format("{}: the verdict is '{}': no layer is accused, so nothing can be guided by it", file,
                                 json.contains("verdict") ? json["verdict"].dump() : "healthy"));
  const Json& first = json["candidates"][0];
  if (!first.is_object() || !first.contains("layer"))
    throw from.error(fmt::format("{}: a candidate has no layer", file));
  return Json::array({first["layer"]});
}

std::vector<site::LayerRange> layers_of_verdict(const Node& from) {
  const std::string& file = from.as_string();
  Json json;
  try {
    json = parse_json_text(read_file(file, kMaxVerdictBytes), file);
  } catch (const RuntimeFailure& failure) {
    throw from.error(failure.what());
  }
  if (!json.is_object()) throw from.error(fmt::format("{}: a verdict is a JSON object", file));
  std::vector<site::LayerRange> ranges;
  for (const Json& layer : layers_named(json, from)) {
    if (!layer.is_number_integer() || layer.get<int64_t>() < 0)
      throw from.error(fmt::format("{}: wanted layer numbers; found {}", file, layer.dump()));
    ranges.push_back({layer.get<int64_t>(), layer.get<int64_t>()});
  }
  return ranges;
}

std::string check_combination(const Node& aqn) {
  const bool weights = aqn.at("sites").as_string() == "norm_weight";
  if (weights && aqn.at("sigma_scale").as_string() == "row")
    return "sigma_scale: row is for activations; norms have absolute and relative";
  if (weights && aqn.find("order") != nullptr)
    return "order: faults do not act on a norm's weight copy, so nothing is before or after; leave it out";
  if (!weights && aqn.at("exclude_router_input").as_bool())
    return "exclude_router_input: norms only; name layers instead";
  if (!weights && (aqn.find("norms") != nullptr || aqn.find("except") != nullptr))
    return "norms and except choose among norms, and this noise goes onto activations; name layers instead";
  return "";
}

}  // namespace

void register_aqn_section() {
  SectionRegistry::global().add("aqn", schedule_schema("schedule", with_noise_fields).check(check_combination),
                                {.doc = "noise on the norms of the policy that samples"});
}

AqnSpec read_aqn(const Node& aqn) {
  AqnSpec spec;
  Node schedule = aqn;
  schedule.set("kind", aqn.at("schedule"));
  spec.schedule = read_schedule(schedule);
  const std::string &sites = aqn.at("sites").as_string(), &scale = aqn.at("sigma_scale").as_string();
  spec.sites = sites == "norm_weight"    ? AqnSites::kNormWeight
               : sites == "layer_output" ? AqnSites::kLayerOutput
                                         : AqnSites::kMatmulOutput;
  spec.scale = scale == "absolute" ? AqnScale::kAbsolute : scale == "relative" ? AqnScale::kRelative : AqnScale::kRow;
  if (const Node* order = aqn.find("order")) spec.after_faults = order->as_string() == "after";
  spec.exclude_router_input = aqn.at("exclude_router_input").as_bool();
  for (const auto& [key, names] : {std::pair("norms", &spec.norms), std::pair("except", &spec.except)})
    if (const Node* list = aqn.find(key))
      for (const Node& name : list->items()) names->push_back(name.as_string());
  spec.force = aqn.at("force").as_bool();
  const Node& layers = aqn.at("layers");
  const Node* verdict = layers.find("from_verdict");
  spec.layers = verdict != nullptr ? layers_of_verdict(*verdict) : site::read_layers(layers);
  return spec;
}

namespace {

Node rollout_only() {
  Node phases = Node::map();
  phases.set("rollout", true);
  for (const char* phase : {"actor_forward", "actor_backward", "ref", "critic", "diagnose", "race"})
    phases.set(phase, false);
  phases.set("eval", "clean");
  return phases;
}

const char* kind_of(AqnScale scale) {
  return scale == AqnScale::kAbsolute   ? "absolute_gaussian"
         : scale == AqnScale::kRelative ? "relative_gaussian"
                                        : "scaled_gaussian";
}

}  // namespace

numeric::Rule noise_rule(const AqnSpec& spec) {
  FL_ASSERT(spec.sites != AqnSites::kNormWeight);
  Node what = Node::map(), where = Node::map(), map = Node::map();
  what.set("kind", kind_of(spec.scale));
  what.set("strength",
           spec.schedule.sigma_start > 0 ? spec.schedule.sigma_start : 1);  // the schedule's takes its place
  if (spec.sites == AqnSites::kLayerOutput) {
    where.set("module", "layer_output");
    where.set("surface", "output");
  } else {
    where.set("operator", "matmul");
  }
  map.set("name", kNoiseRule);
  map.set("where", where);
  map.set("what", what);
  map.set("phases", rollout_only());
  numeric::Rule rule = numeric::read_rule(validate(map, numeric::rule_schema(numeric::RuleUse::kInPlan)));
  rule.where->layers = spec.layers;
  rule.schedule = spec.schedule;
  return rule;
}

int64_t strongest_step(const AqnSpec& spec, int64_t layer_count, int64_t total_steps) {
  check_noise_layers(spec.layers, layer_count);
  std::vector<int64_t> layers;
  for (const site::LayerRange& range : spec.layers)
    for (int64_t layer = range.first; layer <= range.last; ++layer) layers.push_back(layer);
  if (spec.layers.empty()) {
    for (int64_t layer = 0; layer < layer_count; ++layer) layers.push_back(layer);
    if (spec.sites == AqnSites::kMatmulOutput) layers.push_back(kNoLayer);  // the output head
  }
  return strongest_step(spec.schedule, layers, layer_count, total_steps);
}

std::vector<numeric::Rule> with_noise(const AqnSpec& spec, std::vector<numeric::Rule> faults) {
  if (std::any_of(faults.begin(), faults.end(), [](const numeric::Rule& fault) { return fault.name == kNoiseRule; }))
    throw UsageError("faults: the name 'aqn' is the noise's own; give the fault another one");
  faults.insert(spec.after_faults ? faults.end() : faults.begin(), noise_rule(spec));
  return faults;
}

}  // namespace faultline::aqn
