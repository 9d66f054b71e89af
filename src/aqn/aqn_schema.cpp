#include "aqn/aqn_schema.h"

#include <fmt/format.h>

#include "base/schedule_schema.h"
#include "record/file_descriptor.h"

namespace faultline {
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
      .field("layers", Schema::any_of({layers_schema(), verdict}).described_as("layers, or {from_verdict: FILE}"),
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

std::vector<LayerRange> layers_of_verdict(const Node& from) {
  const std::string& file = from.as_string();
  Json json;
  try {
    json = parse_json_text(read_file(file, kMaxVerdictBytes), file);
  } catch (const RuntimeFailure& failure) {
    throw from.error(failure.what());
  }
  if (!json.is_object()) throw from.error(fmt::format("{}: a verdict is a JSON object", file));
  std::vector<LayerRange> ranges;
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
  spec.force = aqn.at("force").as_bool();
  const Node& layers = aqn.at("layers");
  const Node* verdict = layers.find("from_verdict");
  spec.layers = verdict != nullptr ? layers_of_verdict(*verdict) : read_layers(layers);
  return spec;
}

}  // namespace faultline
