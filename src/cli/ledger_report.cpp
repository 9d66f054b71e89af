#include "cli/ledger_report.h"

#include <fmt/format.h>

#include "base/json.h"
#include "cli/output.h"
#include "numeric/apply.h"

namespace faultline::cli {
namespace {

std::string count_text(double count) { return fmt::format("{:.0f}", count); }
std::string counted(double part, double whole) {
  return fmt::format("{} ({})", count_text(part), share_text(part, whole));
}

// `what:` in the short form, without the parameters that were left at their defaults.
std::string rule_title(const numeric::Rule& rule) {
  const Node& what = rule.source.at("what");
  const numeric::KindInfo& info = numeric::kind_info(rule.what.kind);
  std::string parameters;
  for (const auto& [key, value, position] : what.entries()) {
    const auto same = [&key = key](const numeric::ParameterInfo& p) { return p.name == key; };
    const auto parameter = std::find_if(info.parameters.begin(), info.parameters.end(), same);
    if (parameter == info.parameters.end() || (parameter->default_value && *parameter->default_value == value))
      continue;
    const Json json = to_json(value);
    parameters += fmt::format("{}{}={}", parameters.empty() ? "" : ", ", key,
                              json.is_string() ? json.get<std::string>() : json.dump());
  }
  const std::string title = parameters.empty() ? info.name : fmt::format("{}({})", info.name, parameters);
  return rule.name == info.name ? title : fmt::format("{}: {}", rule.name, title);
}

}  // namespace

LedgerReport make_report(const numeric::Rule& rule, numeric::Dtype dtype, const at::Tensor& ledger) {
  const at::Tensor row = numeric::ledger_columns(ledger);
  LedgerReport report{rule, numeric::read_ledger(row.const_data_ptr<double>()), {}, {}};
  report.band = numeric::expected_strength(rule, dtype, report.numbers.sampled);
  report.complaints = numeric::missing_evidence(rule, dtype, report.numbers);
  return report;
}

std::string report_text(const LedgerReport& report) {
  const numeric::LedgerNumbers& n = report.numbers;
  std::vector<std::vector<std::string>> rows = {
      {"  calls", n.calls == n.active_calls
                      ? count_text(n.calls)
                      : fmt::format("{}, active {}", count_text(n.calls), count_text(n.active_calls))},
      {"  elements", count_text(n.elements)},
      {"  selected", counted(n.selected, n.elements)},
      {"  changed", counted(n.changed, n.elements)},
      {"  zeroed", counted(n.zeroed, n.elements)},
      {"  survival", n.nonzero > 0 ? fmt::format("{:.4g} %", 100 * n.survival) : "-"},
      {"  non-finite", count_text(n.nonfinite)},
      {"  saturated", counted(n.saturated, n.elements)},
      {"  mean |e|", number_text(n.mean_abs_error)},
      {"  rms e", number_text(n.rms_error)},
      {"  max |e|", number_text(n.max_abs_error)},
      {"  SQNR", n.sqnr_db ? fmt::format("{:.2f} dB", *n.sqnr_db) : "-"},
      {"  strength", n.relative_rms ? number_text(*n.relative_rms) : "-"},
  };
  if (n.struck > 0) rows.insert(rows.begin() + 8, {"  struck", count_text(n.struck) + " codes or scales"});
  if (report.band) {
    rows.back().back() += fmt::format(" (expected {}, band {} to {})", number_text(report.band->expected),
                                      number_text(report.band->low), number_text(report.band->high));
  }
  std::string text = styled(Style::kHeading, rule_title(report.rule)) + "\n" + table(rows);
  for (const Complaint& complaint : report.complaints)
    text += "  " + styled(Style::kBad, "EVIDENCE MISSING") + ": " + complaint.sentence + "\n";
  return text;
}

Json report_json(const LedgerReport& report) {
  Json json = {
      {"name", report.rule.name}, {"rule", to_json(report.rule.source)}, {"ledger", numeric::to_json(report.numbers)}};
  json["expected_strength"] =
      report.band ? Json{{"expected", report.band->expected}, {"low", report.band->low}, {"high", report.band->high}}
                  : Json();
  json["complaints"] = to_json(report.complaints);
  return json;
}

std::string digest_text(const at::Tensor& tensor) {
  return fmt::format("{:016x}", static_cast<uint64_t>(numeric::digest(tensor).item<int64_t>()));
}

}  // namespace faultline::cli
