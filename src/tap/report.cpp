#include "tap/report.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/json.h"
#include "numeric/apply.h"
#include "numeric/ledger.h"
#include "site/backend.h"
#include "tap/counts.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"
#include "tap/prediction.h"
#include "tap/substitution.h"

namespace faultline::tap {
namespace {

std::string site_name(const Row& row) {
  const std::string& path = site::place_of(row.place).path;
  return fmt::format("{} {}", path.empty() ? "(unattributed)" : path, row.target);
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

// Counts of all rows of a rule; the strength is judged row by row.
numeric::LedgerNumbers added(const std::vector<Plan::Evidence>& evidence, const PlanRule& rule, const Row** example) {
  numeric::LedgerNumbers sum;
  for (const auto& [row, n] : evidence) {
    if (row->rule != &rule) continue;
    if (*example == nullptr) *example = row;
    sum.calls += n.calls, sum.active_calls += n.active_calls, sum.elements += n.elements, sum.selected += n.selected;
    sum.changed += n.changed, sum.nonzero += n.nonzero, sum.zeroed += n.zeroed, sum.nonfinite += n.nonfinite;
    sum.saturated += n.saturated, sum.sampled += n.sampled, sum.struck += n.struck;
  }
  if (sum.nonzero > 0) sum.survival = (sum.nonzero - sum.zeroed) / sum.nonzero;
  return sum;
}

// Of a rule that names several families: those that it never met among them, with 0. Compiled and fused code hides
// some.
std::map<std::string, double> calls_by_family(const std::vector<Plan::Evidence>& evidence, const PlanRule& rule) {
  const std::string& pattern = rule.rule.where->operator_pattern;
  std::map<std::string, double> calls;
  if (pattern != "all_ops" && pattern != "every") return calls;
  for (const std::string& name : operators_of(rule)) calls.try_emplace(std::string(family_of(base_name(name))), 0);
  for (const auto& [row, n] : evidence) {
    if (row->rule == &rule) calls[std::string(family_of(row->target))] += n.calls;
  }
  return calls;
}

// "cpu 8 calls": of each kind of device on which rules acted.
std::vector<std::string> calls_by_kind_of_device(const std::vector<Plan::Evidence>& evidence) {
  std::map<std::string, double> calls;
  for (const auto& [row, n] : evidence) {
    calls[c10::DeviceTypeName(row->ledger.device().type(), true)] += n.calls;
  }
  std::vector<std::string> texts;
  for (const auto& [device, count] : calls) texts.push_back(fmt::format("{} {} calls", device, count));
  return texts;
}

std::string why_never(const Plan& plan, const PlanRule& rule) {
  std::map<std::string, int64_t> reasons;
  for (const auto& row : plan.all_rows()) {
    if (row->rule == &rule && !row->unreached.empty()) reasons[row->unreached] += row->calls;
  }
  if (reasons.empty()) return "nothing it names was called";
  return reasons_text(reasons);
}

std::map<int64_t, at::Tensor> sums_by_layer(Plan& plan) {
  std::map<int64_t, at::Tensor> sums;
  for (const auto& [row, words] : plan.read_ledgers()) {
    at::Tensor& sum = sums[site::place_of(row->place).layer];
    if (!sum.defined()) sum = at::zeros({numeric::kLedgerWords}, at::kLong);
    sum.add_(words);
  }
  return sums;
}

}  // namespace

Verdict judge(Plan& plan, const Censuses& censuses) {
  Verdict verdict;
  verdict.evidence = plan.read_evidence();
  auto& complaints = verdict.complaints;
  const double rows = std::max<double>(1, static_cast<double>(verdict.evidence.size()));
  for (const auto& rule : plan.rules()) {
    const Row* example = nullptr;
    const numeric::LedgerNumbers sum = added(verdict.evidence, *rule, &example);
    if (example == nullptr || sum.calls == 0) {
      complaints.push_back({ComplaintCode::kNeverFired, rule->rule.name, "",
                            fmt::format("rule '{}' never fired: {}", rule->rule.name, why_never(plan, *rule))});
      continue;
    }
    if (rule->repeats != nullptr && sum.changed == 0) continue;  // the rules between left nothing for a second pass
    for (const Complaint& reason : numeric::missing_evidence(rule->rule, example->dtype, sum))
      complaints.push_back(reason);
  }
  for (const auto& [row, n] : verdict.evidence) {
    const int64_t issued = row->calls;
    if (row->captured == 0 ? n.calls != static_cast<double>(issued) : n.calls < static_cast<double>(issued))
      complaints.push_back(
          {ComplaintCode::kIssued, row->rule->rule.name, site::place_of(row->place).path,
           fmt::format("rule '{}' at {}: {} calls were issued in {}, the ledger counted {}", row->rule->rule.name,
                       site_name(*row), issued, site::phase_name(row->phase), n.calls)});
    auto complaint =
        numeric::strength_complaint(row->rule->rule, row->dtype, n, {1e-9 / rows, row->strengths},
                                    fmt::format(" at {} in {}", site_name(*row), site::phase_name(row->phase)));
    if (!complaint) continue;
    complaint->place = site::place_of(row->place).path;
    complaints.push_back(*complaint);
  }
  for (const std::string& name : plan.weights().changed_masters())
    complaints.push_back(
        {ComplaintCode::kWeightChanged, "", name,
         fmt::format("the weight of {} changed while a faulted copy of it was in use; call weights_changed() after "
                     "updates that bypass autograd (p.data.copy_)",
                     name)});
  if (active_plan().get() == &plan) {
    for (const c10::DispatchKey key : backends_since_arming())
      complaints.push_back({ComplaintCode::kLateBackend, "", site::backend_title(key),
                            fmt::format("backend {} was loaded after the plan was armed: what it computes is not "
                                        "faulted; import it before the plan is armed",
                                        site::backend_title(key))});
    for (const WrappedOperator& op : operators_since_arming())
      complaints.push_back({ComplaintCode::kLateBackend, "", op.name,
                            fmt::format("operator {} was registered for {} after the plan was armed: what it computes "
                                        "is not faulted; import what brings it before the plan is armed",
                                        op.name, op.key)});
  }
  for (const auto& [kind, census] : censuses) {
    for (const auto& [phase, names] : unknown_operators(census)) {
      for (const auto& [name, calls] : names) verdict.unknown[name] += calls;
    }
  }
  judge_counts(plan, censuses, verdict.evidence, complaints);
  verdict.allowed = judge_partial(plan, verdict.evidence, complaints);
  return verdict;
}

Json to_json(Plan& plan, const Verdict& verdict, const Censuses& censuses) {
  auto allowed = Json::array();
  for (const PartialSite& site : verdict.allowed)
    allowed.push_back({{"rule", site.rule->rule.name},
                       {"place", site::place_of(site.place).path},
                       {"phase", std::string(site::phase_name(site.phase))},
                       {"calls", site.calls},
                       {"expected", site.expected}});
  Json json = {{"allowed_partial", allowed}, {"seed", plan.settings().seed}, {"step", plan.step()}};
  // Each rule: what it did in sum.
  auto rules = Json::array();
  for (const auto& rule : plan.rules()) {
    const Row* example = nullptr;
    Json entry = {{"name", rule->rule.name}, {"kind", std::string(numeric::kind_name(rule->rule.what.kind))}};
    const numeric::LedgerNumbers sum = added(verdict.evidence, *rule, &example);
    int64_t sites = 0;
    std::map<std::string, int64_t> unreached;
    for (const auto& row : plan.all_rows()) {
      if (row->rule != rule.get()) continue;
      if (row->unreached.empty())
        sites += 1;
      else
        unreached[row->unreached] += row->calls;
    }
    entry["sites"] = sites;
    entry["grows_with_strength"] = grows_with_strength(rule->rule.what.kind);
    entry["every_product"] = faults_every_product(*rule);
    entry["names_modules"] = !rule->rule.where->module_pattern.empty();
    entry["calls"] = sum.calls;
    entry["elements"] = sum.elements;
    entry["changed"] = sum.changed;
    entry["survival"] = sum.survival;
    entry["unreached"] = unreached;
    if (auto calls = calls_by_family(verdict.evidence, *rule); !calls.empty()) entry["families"] = calls;
    // Whether its strength should change in a run of this length: who counts the steps holds it against them.
    if (const auto& schedule = rule->rule.schedule)
      entry["schedule_changes"] = changes_over(*schedule, std::max(plan.settings().total_steps, plan.step() + 1));
    rules.push_back(entry);
  }
  json["rules"] = rules;
  // Each row of the ledger: a rule at a place in a phase.
  auto rows = Json::array();
  for (const auto& [row, numbers] : verdict.evidence) {
    const site::Place& place = site::place_of(row->place);
    Json entry = {{"rule", row->rule->rule.name},
                  {"operator", row->target},
                  {"place", place.path},
                  {"layer", place.layer},
                  {"phase", std::string(site::phase_name(row->phase))},
                  {"dtype", std::string(numeric::dtype_name(row->dtype))},
                  {"device", row->ledger.device().str()},
                  {"first_step", row->first_step},
                  {"first_shape", row->first_shape},
                  {"strength", row->strength}};
    if (row->uses > 0) entry["uses"] = row->uses.load();
    if (row->captured > 0) entry["captured"] = row->captured.load();
    for (int k = 0; k < site::kForwardKinds; ++k) {
      if (const int64_t calls = row->rehearsed[static_cast<std::size_t>(k)]; calls > 0)
        entry["rehearsed"][std::string(site::forward_kind_name(static_cast<site::ForwardKind>(k)))] = calls;
    }
    entry["ledger"] = numeric::to_json(numbers);
    rows.push_back(entry);
  }
  json["rows"] = rows;
  if (!plan.calls_apart().empty()) json["apart"] = plan.calls_apart();  // warm-up, autotuning: nobody's result
  // Forwards by phase, which the counts are held against.
  json["forwards"] = Json::object();
  for (int p = 0; p < site::kPhases; ++p) {
    const auto phase = static_cast<site::Phase>(p);
    if (phase == site::Phase::kActorBackward) continue;  // forwards of actor_forward whose backward is due
    int64_t count = 0;
    auto kinds = Json::object();
    for (int k = 0; k < site::kForwardKinds; ++k) {
      const auto kind = static_cast<site::ForwardKind>(k);
      const int64_t n = plan.forwards(phase, kind);
      if (n > 0) kinds[std::string(site::forward_kind_name(kind))] = n;
      count += n;
    }
    if (count == 0) continue;
    json["forwards"][std::string(site::phase_name(phase))] = count;
    json["forwards_by_kind"][std::string(site::phase_name(phase))] = kinds;
  }
  // Coverage by kind of forward.
  for (const auto& [kind, census] : censuses) {
    if (censuses.size() == 1)
      json["coverage"] = coverage(plan, census);
    else
      json["coverage"][std::string(site::forward_kind_name(kind))] = coverage(plan, census);
  }
  json["complaints"] = to_json(verdict.complaints);
  return json;
}

std::vector<std::string> log_lines(const Plan& plan, const Verdict& verdict) {
  std::vector<std::string> lines;
  for (const PartialSite& site : verdict.allowed)
    lines.push_back(fmt::format("[fault {}] NOT FAULTED, as allow_partial allows: {} in {}, {} of {} calls",
                                site.rule->rule.name, site::place_of(site.place).path, site::phase_name(site.phase),
                                site.calls, site.expected));
  for (const auto& [reason, calls] : plan.calls_apart())
    lines.push_back(fmt::format("[fault] {} calls of {} are kept apart: neither faulted nor counted", calls, reason));
  for (const auto& [name, calls] : verdict.unknown)
    lines.push_back(
        fmt::format("[taps] {} ran {} times and is of no family: rules on families pass it by; name it "
                    "under operators: in the recipe",
                    name, calls));
  if (const auto calls = calls_by_kind_of_device(verdict.evidence); calls.size() > 1)
    lines.push_back(fmt::format("[taps] rules acted on {} kinds of device: {}", calls.size(), fmt::join(calls, ", ")));
  for (const auto& rule : plan.rules()) {
    std::set<site::PlaceId> places;
    int64_t excluded = 0;
    const Plan::Evidence* first = nullptr;
    for (const auto& evidence : verdict.evidence) {
      if (evidence.row->rule != rule.get()) continue;
      places.insert(evidence.row->place);
      if (first == nullptr || evidence.row->first_step < first->row->first_step) first = &evidence;
    }
    for (const auto& row : plan.all_rows()) excluded += row->rule == rule.get() && !row->unreached.empty();
    lines.push_back(
        fmt::format("[fault {}] registered {} sites (excluded {})", rule->rule.name, places.size(), excluded));
    if (const auto calls = calls_by_family(verdict.evidence, *rule); !calls.empty()) {
      std::string text;
      for (const auto& [family, n] : calls) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", family, n);
      lines.push_back(fmt::format("[fault {}] calls by family: {}", rule->rule.name, text));
    }
    if (first == nullptr) continue;
    lines.push_back(
        fmt::format("[fault {}] first injection {} {}: shape={} mean_error={:.6g} rel_error={}", rule->rule.name,
                    site_name(*first->row), site::phase_name(first->row->phase), shape_text(first->row->first_shape),
                    first->numbers.mean_abs_error,
                    first->numbers.relative_rms ? fmt::format("{:.6g}", *first->numbers.relative_rms) : "n/a"));
  }
  return lines;
}

void LayerErrors::begin_step(Plan& plan) { before_ = sums_by_layer(plan); }

Json LayerErrors::end_step(Plan& plan) const {
  Json errors = Json::object();
  for (const auto& [layer, words] : sums_by_layer(plan)) {
    const auto before = before_.find(layer);
    const at::Tensor columns = numeric::ledger_columns(before == before_.end() ? words : words - before->second);
    const double* column = columns.const_data_ptr<double>();
    const double square = column[numeric::kSumSquaredRelative] / column[numeric::kSampled];
    if (column[numeric::kSampled] > 0 && std::isfinite(square)) errors[std::to_string(layer)] = std::sqrt(square);
  }
  return errors;
}

}  // namespace faultline::tap
