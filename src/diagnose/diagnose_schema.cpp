#include "diagnose/diagnose_schema.h"

#include <algorithm>

namespace faultline {

void register_diagnose_section() {
  const Schema schema =
      Schema::map()
          .field("campaign", Schema::choice({"smoke", "full"}),
                 {.default_value = Node("smoke"), .doc = "which kinds, extents and sites"})
          .field("methods", Schema::list(Schema::choice({"classic", "self", "shadow"})),
                 {.default_value = Node::list({Node("classic"), Node("self"), Node("shadow")}), .doc = "who diagnoses"})
          .field("trials", Schema::integer({.min = 0}), {.doc = "of each cell; smoke 1, full 19"})
          .field("healthy", Schema::integer({.min = 0}), {.doc = "clean machines; smoke 3, full 1000"})
          .field("tokens", Schema::integer({.min = 1, .max = 4096}),
                 {.default_value = Node(16), .doc = "of a prompt, at most"})
          .field("seconds", Schema::number({.min = 0}),
                 {.default_value = Node(0.0), .doc = "stop after so long and go on next time; 0: when done"})
          .field("store", Schema::string({.min = 1}),
                 {.default_value = Node("diagnosis.sqlite"), .doc = "where trials are kept"});
  SectionRegistry::global().add("diagnose", schema, {.doc = "a campaign: how often each method is right"});
}

CampaignSpec read_campaign(const Node& recipe, const at::Device& reference) {
  const Node& section = recipe.at("diagnose");
  const bool full = section.at("campaign").as_string() == "full";
  CampaignSpec spec = full ? full_campaign() : smoke_campaign();
  spec.methods.clear();
  for (const Node& method : section.at("methods").items()) spec.methods.push_back(method.as_string());
  if (const Node* trials = section.find("trials")) spec.trials = trials->as_integer();
  if (const Node* healthy = section.find("healthy")) spec.healthy = healthy->as_integer();
  spec.tokens = section.at("tokens").as_integer();
  spec.seconds = section.at("seconds").as_number();
  spec.seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  spec.reference = reference;
  return spec;
}

}  // namespace faultline
