#include "diagnose/diagnosis.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "record/json_text.h"

namespace faultline {
namespace {

// JSON has no infinity; null says that nothing was allowed, or that the value was not finite.
OrderedJson number(double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr); }

OrderedJson to_json(const Evidence& evidence) {
  OrderedJson samples = OrderedJson::array();
  for (const Evidence::Sample& sample : evidence.samples)
    samples.push_back({{"row", sample.row},
                       {"column", sample.column},
                       {"expected", number(sample.expected)},
                       {"observed", number(sample.observed)}});
  OrderedJson picture = OrderedJson::array();
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

OrderedJson to_json(const Candidate& candidate) {
  OrderedJson evidence = OrderedJson::array();
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

OrderedJson object(OrderedJson properties) {
  OrderedJson required = OrderedJson::array();
  for (const auto& [name, schema] : properties.items()) required.push_back(name);
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", required},
          {"additionalProperties", false}};
}

OrderedJson list_of(OrderedJson items) { return {{"type", "array"}, {"items", std::move(items)}}; }

}  // namespace

std::string_view certainty_name(Certainty certainty) {
  switch (certainty) {
    case Certainty::kExact: return "exact";
    case Certainty::kBound: return "bound";
    case Certainty::kStatistical: break;
  }
  return "statistical";
}

OrderedJson to_json(const Diagnosis& diagnosis) {
  OrderedJson candidates = OrderedJson::array();
  for (const Candidate& candidate : diagnosis.candidates) candidates.push_back(to_json(candidate));
  const char* verdict = diagnosis.fault_found()                            ? "fault"
                        : diagnosis.not_tested.empty()                     ? "healthy"
                        : diagnosis.relations > 0 && !diagnosis.broken_off ? "healthy_where_tested"
                                                                           : "not_tested";
  return {{"version", kDiagnosisVersion},
          {"method", diagnosis.method},
          {"verdict", verdict},
          {"candidates", candidates},
          {"not_tested", diagnosis.not_tested},
          {"not_excluded", diagnosis.not_excluded},
          {"relations", diagnosis.relations},
          {"elements", diagnosis.elements},
          {"passes", diagnosis.passes},
          {"forward_equivalents", diagnosis.forwards},
          {"layer_forward_equivalents", diagnosis.layer_forwards},
          {"operator_calls", diagnosis.operator_calls},
          {"seconds", diagnosis.seconds}};
}

OrderedJson diagnosis_schema() {
  const OrderedJson text = {{"type", "string"}}, count = {{"type", "integer"}, {"minimum", 0}};
  const OrderedJson amount = {{"type", "number"}, {"minimum", 0}}, any_number = {{"type", {"number", "null"}}};
  const OrderedJson layer = {{"type", "integer"}, {"minimum", -1}};
  const OrderedJson sample =
      object({{"row", count}, {"column", count}, {"expected", any_number}, {"observed", any_number}});
  const OrderedJson bin = object({{"from", amount},
                                  {"to", amount},
                                  {"elements", count},
                                  {"wrong", count},
                                  {"ratio", any_number},
                                  {"residual", any_number}});
  const OrderedJson evidence = object({{"relation", text},
                                       {"place", text},
                                       {"elements", count},
                                       {"violations", count},
                                       {"ratio", any_number},
                                       {"pass", count},
                                       {"samples", list_of(sample)},
                                       {"picture", list_of(bin)}});
  const OrderedJson candidate = object({{"layer", layer},
                                        {"place", text},
                                        {"operation", text},
                                        {"kind", text},
                                        {"detail", text},
                                        {"score", any_number},
                                        {"certainty", {{"enum", {"exact", "bound", "statistical"}}}},
                                        {"intermittent", {{"type", "boolean"}}},
                                        {"evidence", list_of(evidence)}});
  OrderedJson schema = object({{"version", {{"const", kDiagnosisVersion}}},
                               {"method", {{"enum", {"classic", "self", "shadow"}}}},
                               {"verdict", {{"enum", {"fault", "healthy", "healthy_where_tested", "not_tested"}}}},
                               {"candidates", list_of(candidate)},
                               {"not_tested", list_of(text)},
                               {"not_excluded", list_of(text)},
                               {"relations", count},
                               {"elements", count},
                               {"passes", count},
                               {"forward_equivalents", amount},
                               {"layer_forward_equivalents", amount},
                               {"operator_calls", count},
                               {"seconds", amount}});
  schema["properties"]["made_by"] = {{"type", "object"}};  // of a file: command, versions, machine, model
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "faultline diagnosis";
  return schema;
}

}  // namespace faultline
