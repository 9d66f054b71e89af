#include "diagnose/diagnose_schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace faultline {
namespace {

// A recipe is somebody's; where its store lies is for the command line to say.
std::string check_store(const Node& node) {
  const std::string& name = node.as_string();
  const bool plain =
      name.front() != '.' && name.front() != '-' && name.size() <= 200 &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > ' ' && c != '/' && c < 127; });
  if (plain) return "";
  return fmt::format("{} is no plain name of a file; the folder it lies in is given with --out", describe_text(name));
}

}  // namespace

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
          .field("store", Schema::string({.min = 1}).check(check_store),
                 {.default_value = Node("diagnosis.sqlite"), .doc = "the file of its trials, in the folder of --out"});
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
