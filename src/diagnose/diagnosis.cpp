#include "diagnose/diagnosis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace faultline::diagnose {
namespace {

// JSON has no infinity; null says that nothing was allowed, or that the value was not finite.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json to_json(const Evidence& evidence) {
  Json samples = Json::array();
  for (const Evidence::Sample& sample : evidence.samples)
    samples.push_back({{"row", sample.row},
                       {"column", sample.column},
                       {"expected", number(sample.expected)},
                       {"observed", number(sample.observed)}});
  Json picture = Json::array();
  for (const Evidence::Bin& bin : evidence.picture)
    picture.push_back({{"from", bin.from},
                       {"to", bin.to},
                       {"elements", bin.elements},
                       {"wrong", bin.wrong},
                       {"ratio", number(bin.ratio)},
                       {"residual", number(bin.residual)}});
  return {{"relation", evidence.relation},
          {"place", evidence.place},
          {"elements", evidence.elements},
          {"violations", evidence.violations},
          {"ratio", number(evidence.ratio)},
          {"pass", evidence.pass},
          {"samples", samples},
          {"picture", picture}};
}

Json to_json(const Candidate& candidate) {
  Json evidence = Json::array();
  for (const Evidence& one : candidate.evidence) evidence.push_back(to_json(one));
  return {{"layer", candidate.layer},
          {"place", candidate.place},
          {"operation", candidate.operation},
          {"kind", candidate.kind},
          {"detail", candidate.detail},
          {"score", number(candidate.score)},
          {"certainty", std::string(certainty_name(candidate.certainty))},
          {"intermittent", candidate.intermittent},
          {"evidence", evidence}};
}

// The numbers of a layer's score by their published names, once for the values and for their schema.
constexpr std::pair<const char*, double LayerScore::*> kLayerNumbers[] = {
    {"instability", &LayerScore::instability},
    {"gain", &LayerScore::gain},
    {"kurtosis", &LayerScore::kurtosis},
    {"max_gain", &LayerScore::max_gain},
    {"failure_rate", &LayerScore::failure_rate},
    {"pileup_ratio", &LayerScore::pileup_ratio},
    {"z_instability", &LayerScore::z_instability},
    {"z_gain", &LayerScore::z_gain},
    {"z_kurt", &LayerScore::z_kurt},
    {"z_max_gain", &LayerScore::z_max_gain},
    {"z_instability_jump", &LayerScore::z_instability_jump},
    {"z_kurt_drop", &LayerScore::z_kurt_drop},
    {"z_max_gain_drop", &LayerScore::z_max_gain_drop},
    {"z_failure_jump", &LayerScore::z_failure_jump},
    {"z_pileup_jump", &LayerScore::z_pileup_jump},
    {"score", &LayerScore::score},
};

Json to_json(const LayerScore& layer, std::size_t index) {
  Json json = {{"layer", index}, {"kind", layer.kind}, {"reasons", layer.reasons}, {"noise_seed", layer.noise_seed}};
  for (const auto& [name, member] : kLayerNumbers) json[name] = number(layer.*member);
  return json;
}

double share_of(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

int64_t untested_elements(const Diagnosis& diagnosis) {
  int64_t elements = 0;
  for (const Untested& one : diagnosis.untested) elements += one.elements;
  return elements;
}

Json untested_json(const Diagnosis& diagnosis) {
  const int64_t elements = untested_elements(diagnosis);
  Json layers = Json::array();
  for (const Untested& one : diagnosis.untested)
    layers.push_back({{"layer", one.layer}, {"elements", one.elements}, {"share", share_of(one.elements, one.of)}});
  return {{"elements", elements}, {"share", share_of(elements, elements + diagnosis.elements)}, {"layers", layers}};
}

Json object(Json properties) {
  Json required = Json::array();
  for (const auto& [name, schema] : properties.items()) required.push_back(name);
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", required},
          {"additionalProperties", false}};
}

Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }

}  // namespace

std::string_view certainty_name(Certainty certainty) {
  switch (certainty) {
    case Certainty::kExact: return "exact";
    case Certainty::kBound: return "bound";
    case Certainty::kStatistical: break;
  }
  return "statistical";
}

std::string_view verdict_of(const Diagnosis& diagnosis) {
  if (diagnosis.fault_found()) return "fault";
  if (diagnosis.broken_off || diagnosis.relations == 0) return "not_tested";
  return diagnosis.not_tested.empty() ? "healthy" : "healthy_where_tested";
}

// Neighbouring layers with their smallest and largest share are one entry.
void say_untested(Diagnosis& diagnosis) {
  const int64_t elements = untested_elements(diagnosis);
  if (elements == 0) return;
  std::vector<std::string> where;
  const auto& all = diagnosis.untested;
  for (std::size_t first = 0, last = 0; first < all.size(); first = last + 1) {
    double least = 1, most = 0;
    for (last = first;; ++last) {
      const double share = 100 * share_of(all[last].elements, all[last].of);
      least = last == first ? share : std::min(least, share), most = std::max(most, share);
      if (all[first].layer < 0 || last + 1 == all.size() || all[last + 1].layer != all[last].layer + 1) break;
    }
    const std::string place = all[first].layer < 0 ? "outside the layers"
                              : first == last      ? fmt::format("layer {}", all[first].layer)
                                                   : fmt::format("layers {} to {}", all[first].layer, all[last].layer);
    where.push_back(most - least < 0.05 ? fmt::format("{} ({:.1f} %)", place, most)
                                        : fmt::format("{} ({:.1f} to {:.1f} %)", place, least, most));
  }
  diagnosis.not_tested.push_back(fmt::format(
      "{:.1f} % of the numbers, where what came in, what had to come out or a sum between them is beyond the range of "
      "the arithmetic: {}",
      100 * share_of(elements, elements + diagnosis.elements), fmt::join(where, ", ")));
}

Json to_json(const Diagnosis& diagnosis) {
  Json candidates = Json::array();
  for (const Candidate& candidate : diagnosis.candidates) candidates.push_back(to_json(candidate));
  Json json = {{"version", kDiagnosisVersion},
               {"method", diagnosis.method},
               {"verdict", std::string(verdict_of(diagnosis))},
               {"candidates", candidates},
               {"not_tested", diagnosis.not_tested},
               {"not_excluded", diagnosis.not_excluded},
               {"untested", untested_json(diagnosis)},
               {"relations", diagnosis.relations},
               {"elements", diagnosis.elements},
               {"passes", diagnosis.passes},
               {"forward_equivalents", diagnosis.forwards},
               {"layer_forward_equivalents", diagnosis.layer_forwards},
               {"operator_calls", diagnosis.operator_calls},
               {"seconds", diagnosis.seconds}};
  for (std::size_t i = 0; i < diagnosis.layers.size(); ++i) json["layers"].push_back(to_json(diagnosis.layers[i], i));
  return json;
}

std::string verdict_words(const Diagnosis& diagnosis) {
  const std::string_view verdict = verdict_of(diagnosis);
  return verdict == "fault"        ? "a fault"
         : verdict == "healthy"    ? "healthy"
         : verdict != "not_tested" ? "healthy where tested"
         : diagnosis.broken_off    ? "not tested to the end"
                                   : "not tested";
}

std::string cost_words(const Diagnosis& diagnosis) {
  return fmt::format("{} relations, {:.1f} forward-equivalents, {:.2f} s", diagnosis.relations, diagnosis.forwards,
                     diagnosis.seconds);
}

std::string candidate_words(const Candidate& candidate) {
  return fmt::format("{}  {}  {}{}{}  [{}]", candidate.place, candidate.operation,
                     candidate.intermittent ? "intermittent " : "", candidate.kind,
                     candidate.detail.empty() ? "" : " (" + candidate.detail + ")",
                     certainty_name(candidate.certainty));
}

std::string to_text(const Diagnosis& diagnosis) {
  std::string text = fmt::format("{}: {}  ({})\n", diagnosis.method, verdict_words(diagnosis), cost_words(diagnosis));
  const std::size_t candidates = diagnosis.candidates.size();
  for (std::size_t i = 0; i < std::min(candidates, kMostShown); ++i)
    text += "  " + candidate_words(diagnosis.candidates[i]) + "\n";
  if (candidates > kMostShown) text += fmt::format("  and {} more\n", candidates - kMostShown);
  for (const std::string& sentence : diagnosis.not_tested) text += "  not tested: " + sentence + "\n";
  return text;
}

Json diagnosis_schema() {
  const Json text = {{"type", "string"}}, count = {{"type", "integer"}, {"minimum", 0}};
  const Json amount = {{"type", "number"}, {"minimum", 0}}, any_number = {{"type", {"number", "null"}}};
  const Json layer = {{"type", "integer"}, {"minimum", -1}};
  const Json sample = object({{"row", count}, {"column", count}, {"expected", any_number}, {"observed", any_number}});
  const Json bin = object({{"from", amount},
                           {"to", amount},
                           {"elements", count},
                           {"wrong", count},
                           {"ratio", any_number},
                           {"residual", any_number}});
  const Json evidence = object({{"relation", text},
                                {"place", text},
                                {"elements", count},
                                {"violations", count},
                                {"ratio", any_number},
                                {"pass", count},
                                {"samples", list_of(sample)},
                                {"picture", list_of(bin)}});
  const Json candidate = object({{"layer", layer},
                                 {"place", text},
                                 {"operation", text},
                                 {"kind", text},
                                 {"detail", text},
                                 {"score", any_number},
                                 {"certainty", {{"enum", {"exact", "bound", "statistical"}}}},
                                 {"intermittent", {{"type", "boolean"}}},
                                 {"evidence", list_of(evidence)}});
  const Json share = {{"type", "number"}, {"minimum", 0}, {"maximum", 1}};
  const Json untested_layer = object({{"layer", layer}, {"elements", count}, {"share", share}});
  const Json untested = object({{"elements", count}, {"share", share}, {"layers", list_of(untested_layer)}});
  Json schema = object({{"version", {{"const", kDiagnosisVersion}}},
                        {"method", {{"enum", {"classic", "self", "shadow"}}}},
                        {"verdict", {{"enum", {"fault", "healthy", "healthy_where_tested", "not_tested"}}}},
                        {"candidates", list_of(candidate)},
                        {"not_tested", list_of(text)},
                        {"not_excluded", list_of(text)},
                        {"untested", untested},
                        {"relations", count},
                        {"elements", count},
                        {"passes", count},
                        {"forward_equivalents", amount},
                        {"layer_forward_equivalents", amount},
                        {"operator_calls", count},
                        {"seconds", amount}});
  // Of a file: command, versions, machine, model; the verdicts of all methods; what --fault planted, and its proof.
  schema["properties"]["made_by"] = schema["properties"]["planted"] =
      schema["properties"]["evidence"] = {{"type", "object"}};
  Json layer_score = {{"layer", count}, {"kind", text}, {"reasons", list_of(text)}, {"noise_seed", count}};
  for (const auto& [name, member] : kLayerNumbers) layer_score[name] = any_number;
  schema["properties"]["layers"] = list_of(object(layer_score));  // of classic
  schema["properties"]["verdicts"] = list_of({{"type", "object"}});
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "faultline diagnosis";
  return schema;
}

}  // namespace faultline::diagnose
