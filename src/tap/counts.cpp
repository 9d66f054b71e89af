#include "tap/counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tap/boundary.h"
#include "tap/operator_tap.h"

namespace faultline::tap {
namespace {

bool is_backward(site::Phase phase) { return phase == site::Phase::kActorBackward || phase == site::Phase::kRecompute; }

std::string place_text(site::PlaceId place) {
  return place == site::kNowhere ? "no known place" : site::place_of(place).path;
}

struct Expected {
  std::map<site::PlaceId, int64_t> calls;
  int64_t forwards = 0;
  int64_t routed = 0;  // routed calls that were asked for
};

// Expected calls of one rule, phase by phase.
class Expectation {
 public:
  Expectation(const Plan& plan, const PlanRule& rule, std::vector<Complaint>& complaints)
      : plan_(plan), rule_(rule), complaints_(complaints) {
    const auto names = operators_of(rule);
    operators_.insert(names.begin(), names.end());
  }

  // So many forwards of this kind ran in the phase, each as the census says. Without forwards of this phase in the
  // census those of another will do: what runs forward is the same. scoring: as CensusEntry's.
  void add(site::ForwardKind kind, site::Phase phase, int64_t forwards, const Census* census, bool scoring = false) {
    Expected& expected = phases_[phase];
    expected.forwards += forwards;
    const std::optional<site::Phase> from = census == nullptr ? std::nullopt : source(*census, phase);
    if (!from) {
      complain(ComplaintCode::kUnpredicted, "",
               "{} {} forwards ran in {}, and the census has none of that kind: their calls cannot be predicted",
               forwards, site::forward_kind_name(kind), site::phase_name(phase));
      unpredicted_.insert(phase);
      return;
    }
    std::map<std::string, int64_t> lists;  // of experts: routed calls
    std::map<std::tuple<std::string, std::string, std::string>, std::pair<int64_t, int64_t>> experts;  // writes, routed
    for (const CensusEntry& entry : *census) {
      if (entry.phase != *from || entry.writes == 0 || entry.forwards == kOutsideOfForwards || !names(entry) ||
          entry.scoring != scoring)
        continue;
      if (entry.routed == 0) {
        add_calls(expected, entry.name, entry.place, entry.writes, forwards,
                  {std::max<int64_t>(1, entry.forwards), "forwards"}, phase);
        continue;
      }
      const auto place = expert_place(site::place_of(entry.place).path);
      if (place->number) {
        auto& [writes, routed] = experts[{place->experts, place->inside, entry.name}];
        writes += entry.writes, routed += entry.routed;
        continue;
      }
      int64_t all = 0;
      for (const int64_t times : plan_.routed().of(site::place_id(place->experts), phase, kind)) all += times;
      lists.emplace(place->experts, all);
      add_calls(expected, entry.name, entry.place, entry.writes, all, {entry.routed, "routed calls"}, phase);
    }
    for (const auto& [key, counts] : experts) {
      const auto& [list, inside, name] = key;
      const auto times = plan_.routed().of(site::place_id(list), phase, kind);
      int64_t all = 0;
      for (std::size_t e = 0; e < times.size(); ++e) {
        if (times[e] == 0) continue;
        all += times[e];
        add_calls(expected, name, site::place_id(fmt::format("{}.{}{}{}", list, e, inside.empty() ? "" : ".", inside)),
                  counts.first, times[e], {counts.second, "routed calls"}, phase);
      }
      lists.emplace(list, all);
    }
    for (const auto& [list, times] : lists) expected.routed += times;
  }

  void judge(const std::vector<Plan::Evidence>& evidence) {
    for (const auto& [phase, expected] : phases_) {
      if (unpredicted_.contains(phase)) continue;
      std::map<site::PlaceId, int64_t> counted;
      int64_t all_counted = 0, all_expected = 0;
      for (const auto& [row, numbers] : evidence) {
        if (row->rule != &rule_ || row->phase != phase) continue;
        counted[row->place] += static_cast<int64_t>(numbers.calls), all_counted += static_cast<int64_t>(numbers.calls);
      }
      for (const auto& [place, calls] : expected.calls) all_expected += calls, counted.try_emplace(place, 0);
      const auto [places, only_place] = differing(counted, expected.calls);
      if (all_counted != all_expected) {
        complain(ComplaintCode::kCounts, only_place, "{} calls in {} where {} forwards{} make {}{}", all_counted,
                 site::phase_name(phase), expected.forwards,
                 expected.routed > 0 ? fmt::format(" and {} routed calls", expected.routed) : "", all_expected,
                 places.empty() ? "" : ": " + places);
      } else if (counted[site::kNowhere] == expected_at(expected, site::kNowhere) && !places.empty()) {
        // Compiled code is unattributed where the census was not: then only the sum can be held against it.
        complain(ComplaintCode::kCounts, only_place, "{} calls in {} are as many as expected, but not where: {}",
                 all_counted, site::phase_name(phase), places);
      }
    }
  }

 private:
  template <class... Arguments>
  void complain(ComplaintCode code, const std::string& place, fmt::format_string<Arguments...> text,
                Arguments&&... arguments) {
    complaints_.push_back(
        {code, rule_.rule.name, place,
         fmt::format("rule '{}': {}", rule_.rule.name, fmt::format(text, std::forward<Arguments>(arguments)...))});
  }

  bool names(const CensusEntry& entry) const {
    const auto boundary = boundary_of(entry);
    return boundary ? rule_means_boundary(rule_, site::place_of(entry.place), *boundary)
                    : operators_.contains(entry.name);
  }

  static int64_t expected_at(const Expected& expected, site::PlaceId place) {
    const auto found = expected.calls.find(place);
    return found == expected.calls.end() ? 0 : found->second;
  }

  static std::optional<site::Phase> source(const Census& census, site::Phase phase) {
    std::set<site::Phase> seen;
    for (const CensusEntry& entry : census) {
      if (entry.forwards != kOutsideOfForwards) seen.insert(entry.phase);
    }
    if (is_backward(phase) || seen.contains(phase)) return phase;
    for (const site::Phase other : seen) {
      if (!is_backward(other)) return other;
    }
    return {};
  }

  struct Per {
    int64_t count;
    const char* what;
  };
  void add_calls(Expected& expected, const std::string& name, site::PlaceId place, int64_t writes, int64_t times,
                 Per per, site::Phase phase) {
    if (!why_unreached(rule_, {place, phase}, rule_.rule.where->surface).empty()) return;
    if (writes % per.count != 0) {
      complain(ComplaintCode::kUnpredicted, site::place_of(place).path,
               "{} at {} ran {} times in {} {} of the census: what changes from one to the next cannot be predicted",
               name, place_text(place), writes, per.count, per.what);
      unpredicted_.insert(phase);
      return;
    }
    expected.calls[place] += writes / per.count * times;
  }

  struct Differing {
    std::string text;        // the first few places, with their counts
    std::string only_place;  // its path, where there is one alone
  };
  static Differing differing(const std::map<site::PlaceId, int64_t>& counted,
                             const std::map<site::PlaceId, int64_t>& expected) {
    std::string text, first_place;
    int named = 0;
    for (const auto& [place, calls] : counted) {
      const auto found = expected.find(place);
      const int64_t wanted = found == expected.end() ? 0 : found->second;
      if (calls == wanted) continue;
      if (++named > 3) return {text + ", …", ""};
      if (named == 1) first_place = site::place_of(place).path;
      text += fmt::format("{}{} at {} instead of {}", text.empty() ? "" : ", ", calls, place_text(place), wanted);
    }
    return {text, named == 1 ? first_place : ""};
  }

  const Plan& plan_;
  const PlanRule& rule_;
  std::vector<Complaint>& complaints_;
  std::set<std::string> operators_;
  std::map<site::Phase, Expected> phases_;
  std::set<site::Phase> unpredicted_;
};

}  // namespace

bool tells_scoring(const Census& census) {
  return std::any_of(census.begin(), census.end(), [](const CensusEntry& entry) { return entry.scoring; });
}

void judge_counts(const Plan& plan, const Censuses& censuses, const std::vector<Plan::Evidence>& evidence,
                  std::vector<Complaint>& complaints) {
  if (censuses.empty()) return;
  const bool tells_boundaries = std::any_of(censuses.begin(), censuses.end(), [](const auto& census) {
    return std::any_of(census.second.begin(), census.second.end(),
                       [](const auto& entry) { return boundary_of(entry); });
  });
  for (const auto& rule : plan.rules()) {
    const site::Selector& where = *rule->rule.where;
    const bool judged = where.operator_pattern.empty() ? where.surface != site::Surface::kGradient && tells_boundaries
                                                       : where.surface == site::Surface::kOutput;
    if (!judged) continue;
    Expectation expectation(plan, *rule, complaints);
    for (int k = 0; k < site::kForwardKinds; ++k) {
      const auto kind = static_cast<site::ForwardKind>(k);
      const auto census = censuses.find(kind);
      for (int p = 0; p < site::kPhases; ++p) {
        const auto phase = static_cast<site::Phase>(p);
        const int64_t forwards = plan.forwards(is_backward(phase) ? site::Phase::kActorBackward : phase, kind);
        if (forwards == 0 || !rule->phases.test(static_cast<std::size_t>(p))) continue;
        const Census* known = census == censuses.end() ? nullptr : &census->second;
        const int64_t scored = phase == site::Phase::kActorForward && known != nullptr && tells_scoring(*known)
                                   ? forwards - plan.forwards(site::Phase::kActorBackward, kind)
                                   : 0;
        if (forwards > scored) expectation.add(kind, phase, forwards - scored, known);
        if (scored > 0) expectation.add(kind, phase, scored, known, /*scoring=*/true);
      }
    }
    expectation.judge(evidence);
  }
}

}  // namespace faultline::tap
