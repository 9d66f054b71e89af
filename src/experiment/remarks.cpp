#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "experiment/arm_data.h"

namespace faultline::experiment {
namespace {

// A design that came after a trial was written with that trial's result in the store.
Json before_design(const ExperimentSpec& spec, record::CampaignStore& store, double created) {
  int64_t older = 0, all = 0;
  for (const Arm& arm : spec.arms)
    for (const record::Trial& trial : store.trials(arm.name)) ++all, older += trial.started < created;
  return {{"trials", older}, {"of", all}};
}

std::string torch_of(const record::Trial& trial) {
  const Json versions = trial.outcome.value("versions", Json());
  return versions.is_object() ? versions.value("torch", "") : "";
}

std::string device_kind(const record::Trial& trial) {
  const std::string device = trial.outcome.value("device", "");
  return device.substr(0, device.find(':'));
}

// Where one of the two does not say, nothing is known to differ.
bool differ(const std::string& one, const std::string& other) { return !one.empty() && !other.empty() && one != other; }

int64_t unlike_pairs(const ArmData& arm, const ArmData& against) {
  int64_t unlike = 0;
  for (const record::Trial& one : arm.trials)
    for (const record::Trial& other : against.trials)
      if (one.key.index == other.key.index)
        unlike += differ(torch_of(one), torch_of(other)) || differ(device_kind(one), device_kind(other));
  return unlike;
}

std::string of_the_pairs(const Contrast& contrast, const std::map<std::string, ArmData>& data) {
  const int64_t unlike = unlike_pairs(data.at(contrast.arm), data.at(contrast.against));
  if (unlike == 0) return "";
  return fmt::format(
      "{} pairs of '{}' and '{}' were trained with different versions of torch or on different kinds of device: their "
      "differences are not the arms' alone.",
      unlike, contrast.arm, contrast.against);
}

}  // namespace

Json made_with(const std::map<std::string, ArmData>& data) {
  std::set<std::string> devices;
  std::set<Json> versions;
  int64_t unknown = 0;
  for (const auto& [name, one] : data)
    for (const record::Trial& trial : one.trials) {
      if (const std::string device = trial.outcome.value("device", ""); !device.empty()) devices.insert(device);
      const Json known = trial.outcome.value("versions", Json());
      if (known.is_object())
        versions.insert(known);
      else
        ++unknown;
    }
  return {{"devices", devices}, {"versions", versions}, {"trials_without_versions", unknown}};
}

void add_remarks(const ExperimentSpec& spec, const std::map<std::string, ArmData>& data, record::CampaignStore& store,
                 Json& analysis) {
  Json& remarks = analysis["remarks"] = Json::array();
  if (analysis.contains("design")) {
    const Json older = before_design(spec, store, analysis["design"].at("created").get<double>());
    if (older["trials"] > 0)
      remarks.push_back(fmt::format("{} of {} trials are older than the design.", older["trials"].get<int64_t>(),
                                    older["of"].get<int64_t>()));
    analysis["before_design"] = older;
    const auto planned = analysis["design"].at("seeds").get<int64_t>();
    for (const Json& one : analysis["contrasts"])
      if (const auto pairs = one["pairs"].get<int64_t>(); pairs > planned)
        remarks.push_back(fmt::format("'{}' has {} pairs, but the design has {} seeds.", one["name"].get<std::string>(),
                                      pairs, planned));
  }
  for (const Contrast& contrast : spec.contrasts)
    if (const std::string sentence = of_the_pairs(contrast, data); !sentence.empty()) remarks.push_back(sentence);
  if (const Json& starts = analysis["starts"]; !starts["values"].empty() && !starts["tested"].get<bool>())
    remarks.push_back(
        fmt::format("Whether the starts have a trend was not tested: it takes {} seeds, and there are {}.",
                    kFewestForATrend, starts["values"].size()));
}

}  // namespace faultline::experiment
