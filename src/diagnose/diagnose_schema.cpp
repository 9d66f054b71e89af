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
          .field("trials", Schema::integer({.min = 0}), {.doc = "of each cell; smoke 1, full 300"})
          .field("healthy", Schema::integer({.min = 0}), {.doc = "clean machines; smoke 3, full 1000"})
          .field("rare", Schema::integer({.min = 0}), {.doc = "intermittent faults; smoke 1, full 100"})
          .field("fading", Schema::integer({.min = 0}), {.doc = "faults of falling strength, each kind; full 60"})
          .field("tokens", Schema::integer({.min = 1, .max = 4096}),
                 {.default_value = Node(24), .doc = "of a prompt, at most"})
          .field("store", Schema::string({.min = 1}),
                 {.default_value = Node("diagnosis.sqlite"), .doc = "where trials are kept"});
  SectionRegistry::global().add("diagnose", schema, {.doc = "a campaign: how often each method is right"});
}

CampaignSpec read_campaign(const Node& recipe) {
  const Node& section = recipe.at("diagnose");
  CampaignSpec spec = campaign_spec(section.at("campaign").as_string());
  spec.methods.clear();
  for (const Node& method : section.at("methods").items()) spec.methods.push_back(method.as_string());
  const auto read = [&](const char* name, int64_t& value) {
    if (const Node* given = section.find(name)) value = given->as_integer();
  };
  read("trials", spec.trials), read("healthy", spec.healthy), read("rare", spec.rare), read("fading", spec.fading);
  spec.tokens = section.at("tokens").as_integer();
  spec.seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  return spec;
}

}  // namespace faultline
