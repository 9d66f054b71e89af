#include "lab/run_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/json.h"
#include "tap/report.h"

namespace faultline::lab {
namespace {

constexpr const char* kColumns[] = {"calls",   "active_calls", "elements",  "selected", "changed",
                                    "nonzero", "zeroed",       "nonfinite", "saturated"};

numeric::LedgerNumbers numbers_of(const Json& counts, const std::string& rule) {
  numeric::LedgerNumbers sum;
  for (const Json& row : counts) {
    if (row["rule"] != rule) continue;
    const auto of = [&](const char* column) { return row[column].get<double>(); };
    sum.calls += of("calls"), sum.active_calls += of("active_calls"), sum.elements += of("elements");
    sum.selected += of("selected"), sum.changed += of("changed"), sum.nonzero += of("nonzero");
    sum.zeroed += of("zeroed"), sum.nonfinite += of("nonfinite"), sum.saturated += of("saturated");
    sum.struck += row.value("struck", 0.0);
  }
  return sum;
}

numeric::Dtype dtype_of(const Json& counts, const std::string& rule) {
  for (const Json& row : counts) {
    if (row["rule"] != rule) continue;
    for (const numeric::Dtype dtype : {numeric::Dtype::kBFloat16, numeric::Dtype::kFloat16, numeric::Dtype::kFloat32})
      if (row["dtype"] == std::string(numeric::dtype_name(dtype))) return dtype;
  }
  return numeric::Dtype::kFloat32;
}

Json counts_of(const std::vector<tap::Plan::Evidence>& evidence) {
  std::map<std::pair<std::string, std::string>, Json> sums;  // by rule and phase, the order of join_evidence
  for (const auto& [row, numbers] : evidence) {
    Json& sum = sums[{row->rule->rule.name, std::string(site::phase_name(row->phase))}];
    if (sum.is_null()) {
      sum = {{"rule", row->rule->rule.name},
             {"phase", std::string(site::phase_name(row->phase))},
             {"dtype", std::string(numeric::dtype_name(row->dtype))},
             {"sites", 0}};
      for (const char* column : kColumns) sum[column] = 0;
    }
    sum["sites"] = sum["sites"].get<int64_t>() + 1;
    const Json columns = numeric::to_json(numbers);
    for (const char* column : kColumns)  // counts: whole numbers
      sum[column] = sum[column].get<int64_t>() + static_cast<int64_t>(columns[column].get<double>());
  }
  Json counts = Json::array();
  for (auto& [key, sum] : sums) counts.push_back(std::move(sum));
  return counts;
}

// Not so where a lifetime or its `when` lets it rest, where backward has to run first, or a faulted weight is kept from
// call to call.
bool acts_in_every_forward(const numeric::Rule& rule) {
  const site::Surface surface = rule.where->surface;
  return rule.lifetime.kind == numeric::Lifetime::kPermanent && !rule.when &&
         (surface == site::Surface::kInput || surface == site::Surface::kOutput);
}

// What is asked again of the sum of all parts: a rule that has not fired yet may fire in the next part.
bool asked_again(ComplaintCode code) {
  using enum ComplaintCode;
  return code == kNeverFired || code == kAsleep || code == kUnselected || code == kUnchanged || code == kVisible ||
         code == kFlips;
}

}  // namespace

Json part_evidence(tap::Plan& plan, const tap::Censuses& censuses) {
  const tap::Verdict verdict = tap::judge(plan, censuses);
  Json part = {{"parts", 1}, {"counts", counts_of(verdict.evidence)}, {"forwards", Json::object()}};
  for (int p = 0; p < site::kPhases; ++p) {
    int64_t count = 0;
    for (int k = 0; k < site::kForwardKinds; ++k)
      count += plan.forwards(static_cast<site::Phase>(p), static_cast<site::ForwardKind>(k));
    if (count > 0) part["forwards"][std::string(site::phase_name(static_cast<site::Phase>(p)))] = count;
  }
  std::vector<Complaint> complaints = verdict.complaints;
  std::erase_if(complaints, [](const Complaint& one) { return asked_again(one.code); });
  part["complaints"] = to_json(complaints);
  return part;
}

Json join_evidence(const Json& before, const Json& now) {
  if (before.is_null() || now.is_null()) return before.is_null() ? now : before;
  Json sum = before;
  sum["parts"] = before["parts"].get<int64_t>() + now["parts"].get<int64_t>();
  for (const Json& row : now["counts"]) {
    const auto found = std::find_if(sum["counts"].begin(), sum["counts"].end(), [&](const Json& one) {
      return one["rule"] == row["rule"] && one["phase"] == row["phase"];
    });
    if (found == sum["counts"].end()) {
      sum["counts"].push_back(row);
      continue;
    }
    for (const char* column : kColumns) (*found)[column] = (*found)[column].get<int64_t>() + row[column].get<int64_t>();
    (*found)["sites"] = std::max((*found)["sites"].get<int64_t>(), row["sites"].get<int64_t>());
  }
  std::sort(sum["counts"].begin(), sum["counts"].end(), [](const Json& a, const Json& b) {
    return std::pair(a["rule"].get<std::string>(), a["phase"].get<std::string>()) <
           std::pair(b["rule"].get<std::string>(), b["phase"].get<std::string>());
  });
  for (const auto& [phase, count] : now["forwards"].items())
    sum["forwards"][phase] = sum["forwards"].value(phase, int64_t{0}) + count.get<int64_t>();
  for (const Json& complaint : now["complaints"]) sum["complaints"].push_back(complaint);
  return sum;
}

void leave_out_phase(Json& evidence, site::Phase phase) {
  if (evidence.is_null()) return;
  const std::string name(site::phase_name(phase));
  Json kept = Json::array();
  for (const Json& row : evidence["counts"])
    if (row["phase"] != name) kept.push_back(row);
  evidence["counts"] = std::move(kept);
  evidence["forwards"].erase(name);
}

std::vector<Complaint> missing_evidence(const Json& evidence, const tap::Plan& plan) {
  std::vector<Complaint> complaints;
  if (evidence.is_null()) return {{ComplaintCode::kNoEvidence, "", "", "no fault of the plan was ever armed"}};
  for (const Json& complaint : evidence["complaints"]) complaints.push_back(complaint_from_json(complaint));
  const Json& counts = evidence["counts"];
  for (const auto& rule : plan.rules()) {
    const std::string& name = rule->rule.name;
    for (const Complaint& complaint :
         faultline::numeric::missing_evidence(rule->rule, dtype_of(counts, name), numbers_of(counts, name)))
      complaints.push_back(complaint);
    if (!acts_in_every_forward(rule->rule)) continue;
    for (const auto& [phase, forwards] : evidence["forwards"].items()) {  // docs/lessons.md 8: it ran, but elsewhere
      const auto known = site::phase_by_name(phase);
      if (!known || !rule->phases.test(static_cast<std::size_t>(*known))) continue;
      const site::Selector& where = *rule->rule.where;  // a named tensor is faulted where it is made, in the forward
      if (*known == site::Phase::kActorBackward && where.operator_pattern.empty() &&
          where.surface != site::Surface::kGradient)
        continue;
      const bool counted = std::any_of(counts.begin(), counts.end(), [&, &phase = phase](const Json& row) {
        return row["rule"] == name && row["phase"] == phase && row["calls"].get<int64_t>() > 0;
      });
      if (!counted)
        complaints.push_back(
            {ComplaintCode::kCounts, name, phase,
             fmt::format("rule '{}' is to act in {}; {} forwards ran there and its ledger counted none", name, phase,
                         forwards.get<int64_t>())});
    }
  }
  return complaints;
}

}  // namespace faultline::lab
