#include <fmt/format.h>

#include "base/error.h"
#include "race/run.h"

namespace faultline::race {
namespace {

// The enumerator of that name; names are those of the functions that write them.
template <class Enum>
Enum by_name(const char* (*name_of)(Enum), const std::string& name, int count) {
  for (int i = 0; i < count; ++i)
    if (name == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  throw std::invalid_argument("unknown name " + name);
}

template <class Value>
std::optional<Value> optional_at(const Json& json, const char* key) {
  return json.contains(key) ? std::optional<Value>(json.at(key).get<Value>()) : std::nullopt;
}

uint64_t from_hex(const Json& json) { return std::stoull(json.get<std::string>(), nullptr, 16); }

Mismatch mismatch_from(const Json& j) {
  Mismatch m;
  m.rank = j.at("rank"), m.iteration = j.at("iteration"), m.layer = j.at("layer"), m.operation = j.at("operation");
  m.backward = j.at("phase") == "backward", m.source = j.value("source", -1), m.count = j.at("count");
  m.first = j.at("first"), m.last = j.at("last"), m.changed_bits = from_hex(j.at("xor"));
  m.histogram = j.at("histogram").get<std::vector<uint64_t>>();
  m.observed = static_cast<uint32_t>(from_hex(j.at("observed"))),
  m.expected = static_cast<uint32_t>(from_hex(j.at("expected")));
  m.diagnosis = {by_name(damage_name, j.at("damage"), 9), optional_at<int64_t>(j, "from_iteration"),
                 optional_at<int64_t>(j, "from_layer"), optional_at<int>(j, "from_rank")};
  return m;
}

TimedDeviation deviation_from(const Json& j) {
  Deviation d;
  d.rank = j.at("rank"), d.layer = j.at("layer"), d.key = by_name(key_name, j.at("key"), kKeys);
  d.observed = from_hex(j.at("observed")), d.reference = from_hex(j.at("reference")), d.ambiguous = j.at("ambiguous");
  d.scope = by_name(scope_name, j.at("scope"), 4);
  const Json& axes = j.at("axes");
  d.axes = {by_name(vote_name, axes.at("layers"), 3), by_name(vote_name, axes.at("ranks"), 3),
            by_name(vote_name, axes.at("iterations"), 3)};
  return {j.at("iteration"), d};
}

TimedEvent event_from(const Json& j) {
  Event e;
  e.rank = j.at("rank"), e.layer = j.at("layer"), e.cause = by_name(cause_name, j.at("cause"), 7),
  e.operation = j.at("operation");
  for (const std::string name : j.at("keys")) e.keys |= mask_of(by_name(key_name, name, kKeys));
  e.sources = j.at("sources").get<std::vector<int>>();
  e.consequences = j.at("consequences");
  e.by_digest = j.at("by").at("digest"), e.by_pattern = j.at("by").at("pattern");
  return {j.at("iteration"), e};
}

SlowNote slow_from(const Json& j) {
  return {j.at("rank"), j.at("iteration"), j.at("layer"), j.at("seconds"), j.at("usual")};
}

template <class Item>
Bounded<Item> bounded_from(const Json& json, Item (*item_from)(const Json&)) {
  Bounded<Item> list;
  for (const Json& item : json.at("items")) list.add(item_from(item));
  list.add_omitted(json.at("omitted"));
  return list;
}

}  // namespace

Json evidence_to_json(const RankEvidence& e) {
  Json json = to_json(e.findings), reference = Json::array();
  for (const auto& [place, value] : e.reference.values())
    reference.push_back(
        {{"key", key_name(place.first)}, {"layer", place.second}, {"digest", fmt::format("{:016x}", value)}});
  json.update({{"rank", e.rank},
               {"iterations", e.iterations},
               {"stopped", e.stopped},
               {"interrupted", e.interrupted},
               {"canary", {e.canary.ran, e.canary.detected, e.canary.attributed}},
               {"reference", reference},
               {"step_seconds", e.step_seconds.to_json()},
               {"step_seconds_plain", e.step_seconds_plain.to_json()},
               {"collectives", e.collectives},
               {"collective_bytes", e.collective_bytes}});
  return json;
}

RankEvidence evidence_from_json(const Json& json, const std::string& origin) {
  try {
    RankEvidence e;
    e.rank = json.at("rank"), e.iterations = json.at("iterations"), e.stopped = json.at("stopped"),
    e.interrupted = json.at("interrupted");
    e.canary = {json.at("canary").at(0), json.at("canary").at(1), json.at("canary").at(2)};
    for (const Json& row : json.at("reference"))
      e.reference.set(by_name(key_name, row.at("key"), kKeys), row.at("layer"), from_hex(row.at("digest")));
    e.step_seconds = StepTimes::from_json(json.at("step_seconds"));
    e.step_seconds_plain = StepTimes::from_json(json.at("step_seconds_plain"));
    e.collectives = json.at("collectives"), e.collective_bytes = json.at("collective_bytes");
    e.findings.mismatches = bounded_from(json.at("mismatches"), mismatch_from);
    e.findings.deviations = bounded_from(json.at("deviations"), deviation_from);
    e.findings.events = bounded_from(json.at("events"), event_from);
    e.findings.slow = bounded_from(json.at("slow"), slow_from);
    return e;
  } catch (const std::exception& error) {
    throw RuntimeFailure(fmt::format("{}: not the evidence of a rank: {}", origin, error.what()));
  }
}

}  // namespace faultline::race
