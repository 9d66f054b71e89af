// Before the run: how many pairs, which comparisons, and what they can resolve. A pilot trains the two arms of the
// first contrast on seeds that the experiment never uses; the spread of their differences is the only thing taken from
// it.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/stats.h"
#include "experiment/analysis.h"
#include "experiment/analysis_parts.h"
#include "experiment/campaign.h"
#include "record/clock.h"
#include "record/document.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKind = "experiment_design";
constexpr double kOfInterest = 0.03;  // three points

Json pilot_json(const ExperimentSpec& spec, CampaignStore& store) {
  if (spec.contrasts.empty()) return nullptr;
  const Contrast& first = spec.contrasts.front();
  const std::string endpoint = common_endpoint(spec, store);
  const auto treated = endpoint_by_seed(store, pilot_cell(first.arm), endpoint);
  const auto control = endpoint_by_seed(store, pilot_cell(first.against), endpoint);
  std::vector<double> a, b;
  for (const auto& [seed, value] : treated)
    if (const auto pair = control.find(seed); pair != control.end()) a.push_back(value), b.push_back(pair->second);
  if (a.size() < 2) return nullptr;
  return {{"arm", first.arm},  {"against", first.against},  {"endpoint", endpoint},
          {"pairs", a.size()}, {"sd_of_control", sd_of(b)}, {"sd_of_differences", sd_of(paired_differences(a, b))}};
}

}  // namespace

Json write_design(const ExperimentSpec& spec, const fs::path& folder) {
  const fs::path file = folder / "design.json";
  if (fs::exists(file)) return read_document(file, kKind);
  CampaignStore store(folder / "campaign.sqlite");
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
  design["pilot"] = pilot_json(spec, store);
  if (!design["pilot"].is_null() && spec.seeds >= 2) {
    const double sd = design["pilot"]["sd_of_differences"].get<double>(), alpha = kAlpha / static_cast<double>(family);
    if (sd > 0) {
      design["resolvable"] = paired_t_detectable_effect(sd, spec.seeds, kPower, alpha);  // as Holm's first step asks
      design["resolvable_alone"] = paired_t_detectable_effect(sd, spec.seeds, kPower, kAlpha);
      design["pairs_for_three_points"] = paired_t_required_pairs(kOfInterest, sd, kPower, alpha);
    } else {
      design["note"] = "the pilot's differences are all equal: they have no spread to plan with";
    }
  }
  write_document(file, kKind, design);
  return design;
}

}  // namespace faultline
