// The matrix for people: matrix.md, matrix.json, and the page that reports make of them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files/file.h"
#include "report/record.h"
#include "triage/statistics.h"

namespace faultline::triage {
namespace {

std::string number(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '|': out += "&#124;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace

std::string markdown(const Plan& plan, const Matrix& matrix) {
  std::string text = fmt::format("# {}\n\n{}{}\n\n", escaped(plan.name),
                                 matrix.disqualified ? "**Disqualified.** " : "", matrix.sentence);
  if (!plan.ticket.empty()) text += fmt::format("Ticket: {}\n\n", plan.ticket);
  for (const std::string& note : plan.notes) text += fmt::format("Note: {}\n\n", escaped(note));
  text += fmt::format(
      "| cell | mitigations | failures / valid (95 %) | p (Fisher, Holm) | {}, s | confound | finding "
      "|\n|---|---|---|---|---|---|---|\n",
      plan.command.empty() ? "step" : "clean trial");
  for (const CellSummary& cell : matrix.cells) {
    std::string finding = cell.finding;
    for (const std::string& note : cell.notes) finding += "; " + note;
    for (const auto& [outcome, count] : cell.outcomes) finding += fmt::format("; {} {}", count, outcome);
    for (const auto& [code, count] : cell.complaints) finding += fmt::format("; complaint {}: {}", code, count);
    if (cell.errors > 0) finding += fmt::format("; {} errors left out", cell.errors);
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", cell.name,
                        cell.mitigations.empty() ? "-" : fmt::format("{}", fmt::join(cell.mitigations, " + ")),
                        rate_text(cell), number(cell.p_adjusted, "{:.2g}"), number(cell.step_seconds, "{:.4f}"),
                        cell.confound.empty() ? "-" : cell.confound, escaped(finding));
  }
  text += fmt::format(
      "\nIntervals are Clopper-Pearson; a bound \"<=\" is one-sided. Errors leave the denominator. Trials ran "
      "interleaved in shuffled blocks, seed {}.\n",
      plan.seed);
  return text;
}

void write_matrix(const std::filesystem::path& folder, const Plan& plan, const Matrix& matrix) {
  Json json = to_json(matrix);
  json["plan"] = to_json(plan);
  write_file_atomically(folder / "matrix.json", to_json_text(json, 1) + "\n");
  write_file_atomically(folder / "matrix.md", markdown(plan, matrix));
  write_file_atomically(folder / "matrix.html", report::page({report::load_record(folder)}));
}

}  // namespace faultline::triage
