// The summary of a campaign of diagnoses, as text and as Markdown.
#include <fmt/format.h>

#include "base/json.h"
#include "cli/diagnose_campaign.h"
#include "cli/output.h"

namespace faultline::cli {
namespace {

using TextRows = std::vector<std::vector<std::string>>;

std::string rate_text(const Json& rate) {
  const auto right = rate["right"].get<int64_t>(), trials = rate["trials"].get<int64_t>();
  return fmt::format("{}/{} ({:.1f}-{:.1f} %)", right, trials, 100 * rate["interval"][0].get<double>(),
                     100 * rate["interval"][1].get<double>());
}

std::string markdown_table(const TextRows& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += "| " + joined(rows[i], " | ") + " |\n";
    if (i > 0) continue;
    text += "|";
    for (std::size_t column = 0; column < rows[0].size(); ++column) text += "---|";
    text += "\n";
  }
  return text;
}

TextRows pool_rows(const Json& pools) {
  TextRows rows = {{"pool", "layer", "layer and operator", "kind"}};
  for (const auto& [pool, rates] : pools.items())
    rows.push_back({pool, rate_text(rates["layer"]), rate_text(rates["layer_and_operator"]), rate_text(rates["kind"])});
  return rows;
}

TextRows confusion_rows(const Json& confusion) {
  std::vector<std::string> said;
  for (const auto& [planted, answers] : confusion.items())
    for (const auto& [answer, count] : answers.items())
      if (std::find(said.begin(), said.end(), answer) == said.end()) said.push_back(answer);
  TextRows rows = {{"planted"}};
  rows[0].insert(rows[0].end(), said.begin(), said.end());
  for (const auto& [planted, answers] : confusion.items()) {
    rows.push_back({planted});
    for (const std::string& answer : said) rows.back().push_back(fmt::format("{}", answers.value(answer, int64_t{0})));
  }
  return rows;
}

TextRows curve_rows(const Json& curves) {
  TextRows rows = {{"kind", "strength", "layer"}};
  for (const auto& [kind, points] : curves.items())
    for (const Json& point : points)
      rows.push_back({kind, fmt::format("{:g}", point["strength"].get<double>()), rate_text(point["layer"])});
  return rows;
}

TextRows bar_rows(const Json& bars) {
  TextRows rows = {{"method", "bar", "wanted", "measured", "worst pool", "trials", "holds"}};
  for (const Json& bar : bars) {
    const Json& holds = bar["holds"];
    rows.push_back({bar["method"].get<std::string>(), bar["bar"].get<std::string>(),
                    fmt::format("{:g}", bar["wanted"].get<double>()),
                    fmt::format("{:.4g}", bar["measured"].get<double>()), bar["where"].get<std::string>(),
                    fmt::format("{}", bar["trials"].get<int64_t>()),
                    holds.is_null()     ? "too few trials"
                    : holds.get<bool>() ? "yes"
                                        : "no"});
  }
  return rows;
}

TextRows against_rows(const Json& pools) {
  TextRows rows = {{"pool", "only this method", "only classic", "p"}};
  for (const auto& [name, pair] : pools.items())
    rows.push_back({name, fmt::format("{}", pair["only_this"].get<int64_t>()),
                    fmt::format("{}", pair["only_classic"].get<int64_t>()),
                    fmt::format("{:.2g}", pair["p"].get<double>())});
  return rows;
}

std::string method_text(const std::string& name, const Json& one, bool markdown) {
  const auto shown = [&](const TextRows& rows) { return markdown ? "\n" + markdown_table(rows) + "\n" : table(rows); };
  std::string text = markdown ? fmt::format("## {}\n\n", name) : "\n" + styled(Style::kHeading, name) + "\n";
  text += fmt::format("{:.2f} s, {:.1f} forward-equivalents a diagnosis, {:.1f} for the layer alone.\n",
                      one["seconds"].get<double>(), one["forward_equivalents"].get<double>(),
                      one["layer_forward_equivalents"].get<double>());
  if (const auto not_met = one["not_met"].get<int64_t>(); not_met > 0)
    text += fmt::format("Left out: {} trials whose fault changed nothing while this method looked.\n", not_met);
  if (one.contains("healthy")) {
    TextRows rows = {{"healthy", "accused", "runs", "at most (95 %)"}};
    for (const auto& [shape, healthy] : one["healthy"].items())
      rows.push_back({shape, fmt::format("{}", healthy["flagged"].get<int64_t>()),
                      fmt::format("{}", healthy["runs"].get<int64_t>()),
                      fmt::format("{:.2f} %", 100 * healthy["upper"].get<double>())});
    text += shown(rows);
  }
  text += shown(pool_rows(one["pools"]));
  if (one.contains("intermittent"))
    text += "Faults that act in one call of ten:\n" + shown(pool_rows(one["intermittent"]));
  if (one.contains("curves")) text += "Faults of growing strength, dense:\n" + shown(curve_rows(one["curves"]));
  if (one.contains("against_classic"))
    text += "Who named the layer where the other did not (McNemar's exact test):\n" +
            shown(against_rows(one["against_classic"]));
  if (markdown)
    text += "What was said (columns) of what was planted (rows):\n" + shown(confusion_rows(one["confusion"]));
  return text;
}

std::string whole(const Json& summary, bool markdown) {
  std::string text = fmt::format(
      "{} planted faults, {} diagnoses; {} trials left out because their fault changed nothing.\n",
      summary["planted"].get<int64_t>(), summary["diagnoses"].get<int64_t>(), summary["inactive"].get<int64_t>());
  if (!summary["bars"].empty())
    text += markdown ? "\n" + markdown_table(bar_rows(summary["bars"])) : table(bar_rows(summary["bars"]));
  if (markdown) text += "\n";
  for (const auto& [name, one] : summary["methods"].items()) text += method_text(name, one, markdown);
  return text;
}

}  // namespace

std::string summary_text(const Json& summary) { return whole(summary, false); }
std::string summary_markdown(const Json& summary) { return whole(summary, true); }

}  // namespace faultline::cli
