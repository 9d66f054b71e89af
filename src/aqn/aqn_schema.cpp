#include "aqn/aqn_schema.h"

#include <fmt/format.h>

#include "base/schedule_schema.h"
#include "record/file_descriptor.h"

namespace faultline {
namespace {

constexpr size_t kMaxVerdictBytes = size_t{1} << 24;

Schema with_noise_fields(const Schema& schedule) {
  const Schema verdict = Schema::map().field("from_verdict", Schema::string({.min = 1}),
                                             {.required = true, .doc = "a JSON file with \"layers\": [15]"});
  return schedule
      .field("sigma_scale", Schema::choice({"absolute", "relative"}),
             {.default_value = Node("absolute"), .doc = "relative: sigma times |weight|"})
      .field("layers", Schema::any_of({layers_schema(), verdict}).described_as("layers, or {from_verdict: FILE}"),
             {.default_value = Node("all"), .doc = "all norms, those of some layers, or of the diagnosed ones"})
      .field("force", Schema::boolean(),
             {.default_value = Node(false), .doc = "even where noisy rollouts lose a fifth of the accuracy"});
}

std::vector<LayerRange> layers_of_verdict(const Node& from) {
  const std::string& file = from.as_string();
  Json json;
  try {
    json = parse_json_text(read_file(file, kMaxVerdictBytes), file);
  } catch (const RuntimeFailure& failure) {
    throw from.error(failure.what());
  }
  if (!json.contains("layers") || !json["layers"].is_array() || json["layers"].empty())
    throw from.error(fmt::format("{} has no list \"layers\" with at least one layer; is it a diagnosis?", file));
  std::vector<LayerRange> ranges;
  for (const Json& layer : json["layers"]) {
    if (!layer.is_number_integer() || layer.get<int64_t>() < 0)
      throw from.error(fmt::format("{}: \"layers\" must hold layer numbers; found {}", file, layer.dump()));
    ranges.push_back({layer.get<int64_t>(), layer.get<int64_t>()});
  }
  return ranges;
}

}  // namespace

void register_aqn_section() {
  SectionRegistry::global().add("aqn", schedule_schema("schedule", with_noise_fields),
                                {.doc = "noise on the norms of the policy that samples"});
}

AqnSpec read_aqn(const Node& aqn) {
  AqnSpec spec;
  Node schedule = aqn;
  schedule.set("kind", aqn.at("schedule"));
  spec.schedule = read_schedule(schedule);
  spec.relative = aqn.at("sigma_scale").as_string() == "relative";
  spec.force = aqn.at("force").as_bool();
  const Node& layers = aqn.at("layers");
  const Node* verdict = layers.find("from_verdict");
  spec.layers = verdict != nullptr ? layers_of_verdict(*verdict) : read_layers(layers);
  return spec;
}

}  // namespace faultline
