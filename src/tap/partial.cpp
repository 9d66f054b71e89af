#include "tap/partial.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "site/entered.h"
#include "tap/boundary.h"
#include "tap/operators.h"
#include "tap/plan_rule.h"
#include "tap/routed.h"

namespace faultline::tap {
namespace {

using CallsByRule = std::map<std::tuple<const PlanRule*, site::Phase, site::PlaceId>, int64_t>;

struct Calls {
  CallsByRule all;
  CallsByRule products;
  CallsByRule nameless;  // products that may be those of a module inside the place: its weight was packed or cast
};

bool is_product(const std::string& target) {
  return family_of(target) == "matmul" || (!target.starts_with("aten::") && target.find("::") != std::string::npos);
}
bool multiplies_activations(const std::string& target) { return target.find("bmm") != std::string::npos; }

bool is_of_weight(const Row& row) { return site::is_of_parameters(row.rule->rule.where->surface); }

Calls count_calls(const Plan& plan, const std::vector<Plan::Evidence>& evidence) {
  Calls calls;
  const auto add = [&](const Row& row, int64_t count) {
    const auto key = std::tuple(row.rule, row.phase, row.place);
    calls.all[key] += count;
    if (!is_product(row.target)) return;
    calls.products[key] += count;
    if (!multiplies_activations(row.target)) calls.nameless[key] += count;
  };
  for (const auto& [row, numbers] : evidence) {
    if (!is_of_weight(*row)) add(*row, static_cast<int64_t>(numbers.calls));
  }
  // Of a weight, how often its faulted copy was read: one site makes it, others may read it.
  for (const auto& row : plan.all_rows()) {
    if (is_of_weight(*row)) add(*row, row->uses);
  }
  return calls;
}

int64_t calls_at(const CallsByRule& counted, const PlanRule* rule, site::Phase phase, site::PlaceId place) {
  const auto found = counted.find({rule, phase, place});
  return found == counted.end() ? 0 : found->second;
}

bool names_every_product(const PlanRule& rule) {
  const std::string& pattern = rule.rule.where->operator_pattern;
  return pattern == "matmul" || pattern == "all_ops" || pattern == "every";
}

bool goes_forward(site::Phase phase) {
  return phase != site::Phase::kActorBackward && phase != site::Phase::kRecompute;
}

// How often a module was called in a phase, and where it shows: at its own place, or around it.
struct Called {
  int64_t times = 0;
  site::PlaceId around;
};
Called times_called(site::PlaceId place, const site::KnownModule& module, site::Phase phase) {
  Called called{0, place};
  for (int k = 0; k < site::kForwardKinds; ++k) {
    const auto entry = site::entry_around(place, module, phase, static_cast<site::ForwardKind>(k));
    if (!entry) continue;
    called.times += entry->count;
    if (entry->place != place) called.around = entry->place;
  }
  return called;
}

// Products that modules owe, by where they show.
class MissingProducts {
 public:
  void add(site::PlaceId around, const PartialSite& site) { by_place_[around].push_back(site); }
  // Of modules that were entered themselves, every call is at their place. The others' may be nameless, around them.
  void collect(const Calls& calls, std::vector<PartialSite>& sites) const {
    for (const auto& [around, silent] : by_place_) {
      int64_t missing = 0;
      for (const PartialSite& site : silent) missing += site.place == around ? 0 : site.expected - site.calls;
      const PartialSite& first = silent.front();
      const int64_t elsewhere = around == site::kNowhere ? site::calls_outside(first.rule->index, first.phase) : 0;
      const bool are_nameless = missing <= calls_at(calls.nameless, first.rule, first.phase, around) - elsewhere;
      for (const PartialSite& site : silent) {
        if (site.place == around || !are_nameless) sites.push_back(site);
      }
    }
  }

 private:
  std::map<site::PlaceId, std::vector<PartialSite>> by_place_;
};

// Modules whose products are fewer than their calls make.
void add_silent_products(const PlanRule& rule, site::Phase phase, const Calls& calls, std::vector<PartialSite>& sites) {
  const bool backward = phase == site::Phase::kActorBackward;
  // Backward reads a weight for the gradient of the layer's input alone, which the first layer does not need.
  // A bias is read by no product of backward.
  const site::Surface surface = rule.rule.where->surface;
  if (backward && site::is_of_parameters(surface)) return;
  const auto owed = [&](const site::KnownModule& module) {
    return surface == site::Surface::kBias ? module.biases : module.products;
  };
  const auto modules = site::known_modules();
  const auto at = [&](site::PlaceId place) { return calls_at(calls.products, &rule, phase, place); };
  const bool any = std::any_of(modules.begin(), modules.end(), [&](const auto& entry) { return at(entry.first) > 0; });
  // Nobody saw a forward (a model inside the compiled one was given): whoever acts shows what its siblings owe.
  const bool unseen = any && !backward && !site::any_entries(phase);
  MissingProducts missing_products;
  for (const auto& [place, module] : modules) {
    if (owed(module) == 0 || !why_unreached(rule, {place, phase}, rule.rule.where->surface).empty()) continue;
    // How many products a backward has follows from what needs gradients; none at all, of a weight that does, is too
    // few.
    Called called = times_called(place, module, backward ? site::Phase::kActorForward : phase);
    if (backward) called.times = module.is_trained && any && called.times > 0 ? 1 : 0;
    if (unseen) called = {1, site::kNowhere};
    const int64_t expected = called.times * (backward || unseen ? 1 : owed(module));
    if (at(place) < expected) missing_products.add(called.around, {&rule, phase, place, at(place), expected});
  }
  missing_products.collect(calls, sites);
}

// Modules that were called and whose boundary was not passed as often: somebody took its hook, or it is in compiled
// code that was made without it.
void add_silent_boundaries(const PlanRule& rule, site::Phase phase, const Calls& calls,
                           std::vector<PartialSite>& sites) {
  for (const auto& [place, module] : site::known_modules()) {
    const site::Surface surface = rule.rule.where->surface;
    const bool means = rule_means_boundary(rule, site::place_of(place), site::Surface::kInput) ||
                       rule_means_boundary(rule, site::place_of(place), site::Surface::kOutput);
    if (!means || surface == site::Surface::kGradient || !why_unreached(rule, {place, phase}, surface).empty())
      continue;
    const Called called = times_called(place, module, phase);
    const auto expert = expert_place(site::place_of(place).path);
    if (called.around != place && expert && expert->number && expert->inside.empty()) continue;  // it was not chosen
    const int64_t passed = calls_at(calls.all, &rule, phase, place);
    if (passed < called.times) sites.push_back({&rule, phase, place, passed, called.times});
  }
}

int64_t rehearsed_calls(const Plan& plan, const Row& row) {
  int64_t expected = 0;
  for (int k = 0; k < site::kForwardKinds; ++k)
    expected +=
        row.rehearsed[static_cast<std::size_t>(k)] * plan.forwards(row.phase, static_cast<site::ForwardKind>(k));
  return expected;
}

void add_rehearsed(const Plan& plan, const std::vector<Plan::Evidence>& evidence, std::vector<PartialSite>& sites,
                   std::vector<Complaint>& complaints) {
  for (const auto& [row, numbers] : evidence) {
    if (is_of_weight(*row)) continue;  // a copy is made once and used often
    const int64_t expected = rehearsed_calls(plan, *row), calls = static_cast<int64_t>(numbers.calls);
    if (calls == expected ||
        std::all_of(row->rehearsed.begin(), row->rehearsed.end(), [](const auto& n) { return n == 0; }))
      continue;
    if (calls < expected) {
      sites.push_back({row->rule, row->phase, row->place, calls, expected});
      continue;
    }
    const std::string& path = site::place_of(row->place).path;
    complaints.push_back({ComplaintCode::kCounts, row->rule->rule.name, path,
                          fmt::format("rule '{}' at {} {}: {} calls in {} where the forwards make {}",
                                      row->rule->rule.name, path.empty() ? "(unattributed)" : path, row->target, calls,
                                      site::phase_name(row->phase), expected)});
  }
}

void complain(const std::vector<PartialSite>& sites, std::vector<Complaint>& complaints) {
  std::map<std::pair<std::string, site::Phase>, std::vector<PartialSite>> groups;
  for (const PartialSite& site : sites) groups[{site.rule->rule.name, site.phase}].push_back(site);
  for (const auto& [key, group] : groups) {
    std::string places;
    for (std::size_t i = 0; i < std::min<std::size_t>(group.size(), 3); ++i)
      places += fmt::format("{}{} of {} calls at {}", i == 0 ? "" : ", ", group[i].calls, group[i].expected,
                            site::place_of(group[i].place).path);
    if (group.size() > 3) places += fmt::format(" and {} more sites", group.size() - 3);
    complaints.push_back(
        {ComplaintCode::kPartial, key.first, group.size() == 1 ? site::place_of(group[0].place).path : "",
         fmt::format(
             "rule '{}' reached its sites in {} in part: {}; the rest ran without the fault (in a kernel that no "
             "tap reaches, or in a graph captured without it). If that is meant, name the sites in allow_partial",
             key.first, site::phase_name(key.second), places)});
  }
}

}  // namespace

bool faults_every_product(const PlanRule& rule) {
  const site::Selector& where = *rule.rule.where;
  return names_every_product(rule) && where.layers.empty() && where.except.empty() &&
         where.surface == site::Surface::kOutput;
}

std::vector<PartialSite> judge_partial(const Plan& plan, const std::vector<Plan::Evidence>& evidence,
                                       std::vector<Complaint>& complaints) {
  const Calls calls = count_calls(plan, evidence);
  std::vector<PartialSite> sites, allowed;
  for (const auto& rule : plan.rules()) {
    const bool fired = std::any_of(calls.all.begin(), calls.all.end(), [&](const auto& entry) {
      return std::get<0>(entry.first) == rule.get() && entry.second > 0;
    });
    if (!fired) continue;  // said already
    for (int p = 0; p < site::kPhases; ++p) {
      const auto phase = static_cast<site::Phase>(p);
      if (!rule->phases.test(static_cast<std::size_t>(p)) || phase == site::Phase::kRecompute) continue;
      if (names_every_product(*rule)) add_silent_products(*rule, phase, calls, sites);
      if (!rule->rule.where->module_pattern.empty() && goes_forward(phase))
        add_silent_boundaries(*rule, phase, calls, sites);
    }
  }
  add_rehearsed(plan, evidence, sites, complaints);
  const auto may_be = [&](const PartialSite& site) {
    const auto& names = plan.settings().allow_partial;
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return names_place(name, site::place_of(site.place)); });
  };
  const auto meant = std::stable_partition(sites.begin(), sites.end(), [&](const auto& site) { return !may_be(site); });
  allowed.assign(meant, sites.end());
  sites.erase(meant, sites.end());
  complain(sites, complaints);
  return allowed;
}

}  // namespace faultline::tap
