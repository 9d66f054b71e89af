// Before the run: how many pairs, which comparisons, and what they can resolve. A pilot trains the two arms of the
// first contrast on seeds that the experiment never uses; the spread of their differences is the only thing taken from
// it.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/machine.h"
#include "base/stats/stats.h"
#include "experiment/analysis.h"
#include "experiment/arm_data.h"
#include "experiment/campaign.h"
#include "record/document.h"

namespace faultline::experiment {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDesignKind = "experiment_design";
constexpr double kOfInterest = 0.03;  // three points

struct Pilot {
  std::vector<double> treated, untreated;
  int64_t trials = 0, unproven = 0;
};

Pilot read_pilot(const Contrast& contrast, record::CampaignStore& store, const std::string& endpoint) {
  Pilot pilot;
  for (const std::string& arm : {contrast.arm, contrast.against})
    for (const record::Trial& trial : store.trials(pilot_cell(arm)))
      ++pilot.trials, pilot.unproven += trial.status == record::TrialStatus::kError;
  const auto treated = endpoint_by_seed(store, pilot_cell(contrast.arm), endpoint);
  const auto control = endpoint_by_seed(store, pilot_cell(contrast.against), endpoint);
  for (const auto& [seed, value] : treated)
    if (const auto pair = control.find(seed); pair != control.end())
      pilot.treated.push_back(value), pilot.untreated.push_back(pair->second);
  return pilot;
}

// Null where none was begun. A part of a pilot is none: the design would be frozen with what happened to be there.
Json pilot_json(const ExperimentSpec& spec, record::CampaignStore& store, const std::string& folder) {
  if (spec.contrasts.empty()) return nullptr;
  const Contrast& first = spec.contrasts.front();
  const std::string endpoint = common_endpoint(spec, store);
  const Pilot pilot = read_pilot(first, store, endpoint);
  if (pilot.trials == 0) return nullptr;
  if (const int64_t left = 2 * spec.pilot - pilot.trials; left > 0)
    throw UsageError(
        fmt::format("{}: a pilot was begun and {} of its trials are left; run it to its end (--pilot), or "
                    "use another --out",
                    folder, left));
  if (pilot.unproven > 0)
    throw EvidenceError(
        ComplaintCode::kNoEvidence,
        fmt::format("{}: the evidence of {} of the pilot's trials is missing, so no design is written; --pilot --again "
                    "runs them once more",
                    folder, pilot.unproven));
  if (pilot.treated.size() < 2)
    throw EvidenceError(
        ComplaintCode::kUnproven,
        fmt::format("{}: {} of the pilot's pairs came to their end, and a spread takes two; raise experiment.pilot, or "
                    "use another --out and no pilot",
                    folder, pilot.treated.size()));
  return {{"arm", first.arm},
          {"against", first.against},
          {"endpoint", endpoint},
          {"pairs", pilot.treated.size()},
          {"sd_of_control", sd_of(pilot.untreated)},
          {"sd_of_differences", sd_of(paired_differences(pilot.treated, pilot.untreated))}};
}

// What that many seeds resolve; nothing where they cannot be significant whatever the effect.
void plan_with(double sd, int64_t family, Json& design) {
  const auto seeds = design["seeds"].get<int64_t>();
  const double level = kAlpha / static_cast<double>(family), smallest = smallest_sign_flip_p(seeds);
  if (smallest <= level) design["resolvable"] = paired_t_detectable_effect(sd, seeds, kPower, level);
  if (smallest <= kAlpha) design["resolvable_alone"] = paired_t_detectable_effect(sd, seeds, kPower, kAlpha);
  design["pairs_for_three_points"] =
      std::max(paired_t_required_pairs(kOfInterest, sd, kPower, level), design["fewest_pairs_for_holm"].get<int64_t>());
}

}  // namespace

Json write_design(const ExperimentSpec& spec, const fs::path& folder) {
  const fs::path file = folder / "design.json";
  if (fs::exists(file)) return record::read_document(file, kDesignKind);
  record::CampaignStore store(folder / "campaign.sqlite");
  for (const Arm& arm : spec.arms)
    if (store.count(arm.name) > 0)
      throw UsageError(
          fmt::format("{}: trials of '{}' exist but no design does; a design made after the results would "
                      "be none: use another --out",
                      folder.string(), arm.name));
  const auto family = static_cast<int64_t>(spec.contrasts.size());
  Json design = {{"seeds", spec.seeds}, {"alpha", kAlpha}, {"power", kPower}, {"created", system_seconds()}};
  design["contrasts"] = Json::array();
  for (const Contrast& one : spec.contrasts)
    design["contrasts"].push_back({{"name", one.name}, {"arm", one.arm}, {"against", one.against}});
  if (family > 0) design["fewest_pairs_for_holm"] = fewest_sign_flip_pairs(kAlpha, family);
  design["pilot"] = pilot_json(spec, store, folder.string());
  if (!design["pilot"].is_null() && spec.seeds >= 2) {
    const double sd = design["pilot"]["sd_of_differences"].get<double>();
    if (sd > 0)
      plan_with(sd, family, design);
    else
      design["note"] = "the pilot's differences are all equal: they have no spread to plan with";
  }
  record::write_document(file, kDesignKind, design);
  return design;
}

}  // namespace faultline::experiment
