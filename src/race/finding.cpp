#include "race/finding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>

namespace faultline::race {
namespace {

std::vector<int> bits_of(uint64_t mask) {
  std::vector<int> bits;
  for (; mask != 0; mask &= mask - 1) bits.push_back(std::countr_zero(mask));
  return bits;
}

std::string damage_text(const Diagnosis& diagnosis) {
  std::string text = damage_name(diagnosis.damage);
  if (diagnosis.from_iteration)
    text += fmt::format("(iter={} layer={})", *diagnosis.from_iteration, *diagnosis.from_layer);
  if (diagnosis.from_rank) text += fmt::format("(rank={})", *diagnosis.from_rank);
  return text;
}

std::string head(const Mismatch& m) {
  std::string upper;
  for (const char c : m.operation) upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper + " CORRUPTION";
}

std::vector<std::string> key_names(KeyMask mask) {
  std::vector<std::string> names;
  for (int key = 0; key < kKeys; ++key)
    if ((mask >> key & 1u) != 0) names.emplace_back(key_name(static_cast<Key>(key)));
  return names;
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

Json json_of(const Mismatch& m) {
  Json json = {{"rank", m.rank},
               {"iteration", m.iteration},
               {"layer", m.layer},
               {"operation", m.operation},
               {"phase", m.backward ? "backward" : "forward"},
               {"count", m.count},
               {"first", m.first},
               {"last", m.last},
               {"bits", bits_of(m.changed_bits)},
               {"xor", hex(m.changed_bits)},
               {"histogram", m.histogram},
               {"observed", fmt::format("{:x}", m.observed)},
               {"expected", fmt::format("{:x}", m.expected)},
               {"damage", damage_name(m.diagnosis.damage)}};
  if (m.source >= 0) json["source"] = m.source;
  if (m.diagnosis.from_iteration) json["from_iteration"] = *m.diagnosis.from_iteration;
  if (m.diagnosis.from_layer) json["from_layer"] = *m.diagnosis.from_layer;
  if (m.diagnosis.from_rank) json["from_rank"] = *m.diagnosis.from_rank;
  return json;
}

Json json_of(const TimedDeviation& d) {
  const Axes& axes = d.deviation.axes;
  return {{"rank", d.deviation.rank},
          {"iteration", d.iteration},
          {"layer", d.deviation.layer},
          {"key", key_name(d.deviation.key)},
          {"observed", hex(d.deviation.observed)},
          {"reference", hex(d.deviation.reference)},
          {"ambiguous", d.deviation.ambiguous},
          {"scope", scope_name(d.deviation.scope)},
          {"axes",
           {{"layers", vote_name(axes.layers)},
            {"ranks", vote_name(axes.ranks)},
            {"iterations", vote_name(axes.iterations)}}}};
}

Json json_of(const TimedEvent& e) {
  return {{"rank", e.event.rank},
          {"iteration", e.iteration},
          {"layer", e.event.layer},
          {"cause", cause_name(e.event.cause)},
          {"operation", e.event.operation},
          {"keys", key_names(e.event.keys)},
          {"sources", e.event.sources},
          {"consequences", e.event.consequences},
          {"by", {{"digest", e.event.by_digest}, {"pattern", e.event.by_pattern}}}};
}

Json json_of(const SlowNote& note) {
  return {{"rank", note.rank},
          {"iteration", note.iteration},
          {"layer", note.layer},
          {"seconds", note.seconds},
          {"usual", note.usual}};
}

template <class Item>
Json json_of(const Bounded<Item>& list) {
  Json items = Json::array();
  for (const Item& item : list.items()) items.push_back(json_of(item));
  return {{"count", list.count()}, {"omitted", list.omitted()}, {"items", items}};
}

}  // namespace

std::string log_line(const Mismatch& m) {
  return fmt::format(
      "{}: rank={} iter={} layer={} phase={} source={} first={} last={} count={} bits=[{}] observed={:x} expected={:x} "
      "damage={}",
      head(m), m.rank, m.iteration, m.layer, m.backward ? "backward" : "forward", m.source, m.first, m.last, m.count,
      fmt::join(bits_of(m.changed_bits), ","), m.observed, m.expected, damage_text(m.diagnosis));
}

std::string log_line(const TimedDeviation& d) {
  const Deviation& deviation = d.deviation;
  return fmt::format(
      "LAYER_CHECKSUM_MISMATCH ({}): rank={} iter={} reference={} layer_{}={} layers={} ranks={} iterations={} "
      "scope={}{}",
      key_name(deviation.key), deviation.rank, d.iteration, hex(deviation.reference), deviation.layer,
      hex(deviation.observed), vote_name(deviation.axes.layers), vote_name(deviation.axes.ranks),
      vote_name(deviation.axes.iterations), scope_name(deviation.scope), deviation.ambiguous ? " ambiguous" : "");
}

std::string log_line(const TimedEvent& e) {
  const Event& event = e.event;
  const std::string text = fmt::format("cause={} rank={} iter={} layer={} operation={} sources=[{}] consequences={}",
                                       cause_name(event.cause), event.rank, e.iteration, event.layer, event.operation,
                                       fmt::join(event.sources, ","), event.consequences);
  return (event.operation == "backward" ? "GRADIENT DIVERGENCE: " : "ATTRIBUTION: ") + text;
}

std::string log_line(const SlowNote& note) {
  return fmt::format("SLOW RANK: rank={} iter={} layer={} seconds={:.3f} usual={:.6f}", note.rank, note.iteration,
                     note.layer, note.seconds, note.usual);
}

std::vector<std::string> log_lines(const Findings& findings, const std::vector<std::string>& hosts) {
  std::vector<std::string> lines;
  const auto host = [&](int rank) {
    return rank < 0 || hosts.empty() ? std::string() : hosts[static_cast<size_t>(rank)];
  };
  const auto add = [&](const auto& item, int rank, const std::vector<int>& sources) {
    lines.push_back(log_line(item));
    if (hosts.empty()) return;
    lines.back() += " host=" + host(rank);
    std::vector<std::string> names;
    for (const int source : sources) names.push_back(host(source));
    if (!names.empty()) lines.back() += fmt::format(" source_hosts=[{}]", fmt::join(names, ","));
  };
  for (const auto& item : findings.deviations.items()) add(item, item.deviation.rank, {});
  for (const auto& item : findings.mismatches.items()) add(item, item.rank, {});
  for (const auto& item : findings.events.items()) add(item, item.event.rank, item.event.sources);
  for (const auto& item : findings.slow.items()) add(item, item.rank, {});
  return lines;
}

Json to_json(const Findings& findings) {
  return {{"mismatches", json_of(findings.mismatches)},
          {"deviations", json_of(findings.deviations)},
          {"events", json_of(findings.events)},
          {"slow", json_of(findings.slow)}};
}

}  // namespace faultline::race
