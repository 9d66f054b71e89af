#include "triage/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "record/atomic_file.h"

namespace faultline::triage {
namespace {

std::string number(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

struct Row {
  std::string cell, mitigations, rate, p, time, confound, finding;
};

Row row_of(const CellSummary& cell) {
  std::string confound = cell.confound.empty() ? "-" : cell.confound;
  std::string finding = cell.finding;
  for (const std::string& note : cell.notes) finding += "; no-op: " + note;
  if (cell.errors > 0) finding += fmt::format("; {} errors left out", cell.errors);
  return {cell.name,
          cell.mitigations.empty() ? "-" : fmt::format("{}", fmt::join(cell.mitigations, " + ")),
          rate_text(cell),
          number(cell.p_adjusted, "{:.2g}"),
          number(cell.step_seconds, "{:.4f}"),
          confound,
          finding};
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

const char* tone(const CellSummary& cell) {
  if (cell.valid() == 0) return "error";
  return cell.failed > 0 ? "bad" : "good";
}

// The interval as a bar from 0 to 100 %.
std::string bar(const CellSummary& cell) {
  if (cell.valid() == 0) return "";
  const double low = cell.failed == 0 ? 0 : cell.clopper_pearson.low,
               high = cell.failed == 0 ? cell.upper : cell.clopper_pearson.high;
  return fmt::format(
      "<svg width=\"160\" height=\"14\" role=\"img\" aria-label=\"{}\"><rect width=\"160\" height=\"14\" "
      "class=\"track\"/>"
      "<rect x=\"{:.1f}\" width=\"{:.1f}\" height=\"14\" class=\"range\"/><rect x=\"{:.1f}\" width=\"2\" height=\"14\" "
      "class=\"rate\"/></svg>",
      escaped(rate_text(cell)), 160 * low, std::max(1.0, 160 * (high - low)), std::min(158.0, 160 * cell.rate()));
}

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 "
    "1rem;color:#1b1f24;background:#fff}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.4rem .6rem;border-bottom:1px solid "
    "#d0d7de;text-align:left;vertical-align:top}"
    ".good td:first-child{border-left:4px solid #1a7f37}.bad td:first-child{border-left:4px solid #cf222e}.error "
    "td:first-child{border-left:4px solid #9a6700}"
    ".track{fill:#eaeef2}.range{fill:#54aeff}.rate{fill:#0a3069}pre{background:#f6f8fa;padding:.8rem;overflow:auto}"
    "@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}td,th{border-color:#30363d}.track{fill:#"
    "21262d}pre{background:#161b22}.rate{fill:#fff}}";

std::string failures(const std::vector<RecordedTrial>& trials) {
  std::string text;
  size_t shown = 0;
  for (const RecordedTrial& trial : trials) {
    if (trial.result.verdict == TrialVerdict::kPass || ++shown > 20) continue;
    text += fmt::format("{} trial {} (seed {}): {}: {}\n", trial.cell, trial.index, trial.seed,
                        verdict_name(trial.result.verdict), trial.result.sentence);
  }
  return text;
}

}  // namespace

std::string markdown(const Plan& plan, const Matrix& matrix) {
  std::string text =
      fmt::format("# {}\n\n{}{}\n\n", plan.name, matrix.disqualified ? "**Disqualified.** " : "", matrix.sentence);
  if (!plan.ticket.empty()) text += fmt::format("Ticket: {}\n\n", plan.ticket);
  text +=
      "| cell | mitigations | failures / valid (95 %) | p (Fisher, Holm) | step, s | confound | finding "
      "|\n|---|---|---|---|---|---|---|\n";
  for (const CellSummary& cell : matrix.cells) {
    const Row row = row_of(cell);
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", row.cell, row.mitigations, row.rate, row.p, row.time,
                        row.confound, escaped(row.finding));
  }
  text += fmt::format(
      "\nIntervals are Clopper-Pearson; a bound \"<=\" is one-sided. Errors leave the denominator. Trials ran "
      "interleaved in shuffled blocks, seed {}.\n",
      plan.seed);
  return text;
}

std::string html(const Plan& plan, const Matrix& matrix, const std::vector<RecordedTrial>& trials) {
  std::string text = fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta "
      "charset=\"utf-8\"><title>{0}</title><style>{1}</style></head><body><h1>{0}</h1><p>{2}{3}</p>",
      escaped(plan.name), kStyle, matrix.disqualified ? "<strong>Disqualified.</strong> " : "",
      escaped(matrix.sentence));
  if (!plan.ticket.empty()) text += fmt::format("<p>Ticket: {}</p>", escaped(plan.ticket));
  text +=
      "<table><thead><tr><th>cell<th>mitigations<th>failures / valid<th>95 % interval of the rate<th>p (Fisher, "
      "Holm)<th>step, s<th>confound<th>finding</tr></thead><tbody>";
  for (const CellSummary& cell : matrix.cells) {
    const Row row = row_of(cell);
    text += fmt::format("<tr class=\"{}\"><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>", tone(cell),
                        escaped(row.cell), escaped(row.mitigations), escaped(row.rate), bar(cell), row.p, row.time,
                        escaped(row.confound), escaped(row.finding));
  }
  text += "</tbody></table>";
  if (const std::string list = failures(trials); !list.empty())
    text += fmt::format("<h2>Failures and errors (the first 20)</h2><pre>{}</pre>", escaped(list));
  text += fmt::format(
      "<p>Trials ran interleaved in shuffled blocks, seed {}. Trials that ended in an error are left out of the rates. "
      "A confound \"speed\" means that the cell is "
      "slower than the baseline by more than {:.0f} %, so that its effect may be the slowness "
      "alone.</p></body></html>\n",
      plan.seed, 100 * (plan.confound_threshold - 1));
  return text;
}

void write_report(const std::filesystem::path& folder, const Plan& plan, const Matrix& matrix,
                  const std::vector<RecordedTrial>& trials) {
  Json json = to_json(matrix);
  json["plan"] = to_json(plan);
  write_file_atomically(folder / "matrix.json", to_json_text(json, 1) + "\n");
  write_file_atomically(folder / "matrix.md", markdown(plan, matrix));
  write_file_atomically(folder / "matrix.html", html(plan, matrix, trials));
}

}  // namespace faultline::triage
