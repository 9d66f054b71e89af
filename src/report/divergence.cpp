// The story of two traces beside each other: the verdict in words, the first wrong operator, how the difference grows
// along depth beside what rounding alone gives, what each operator adds by itself, and the tokens that differ most.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostRows = 200;

std::vector<Point> points_of(const Json& places, const char* key, bool outputs_only) {
  std::vector<Point> points;
  double x = 0;
  for (const Json& place : items(places)) {
    ++x;
    if (outputs_only && string(place, "surface") != "output") continue;
    if (const auto value = number(place, key); value && *value > 0) points.push_back({x, std::log10(*value)});
  }
  return points;
}

Html growth(const Json& places) {
  LineChart chart{.title = "Along the model, at every product's input and output: log10 of the relative difference",
                  .x_label = "place"};
  chart.series.push_back({"difference of a and b", points_of(places, "difference", false)});
  chart.series.push_back({"a's own error", points_of(places, "own_a", true)});
  chart.series.push_back({"b's own error", points_of(places, "own_b", true)});
  chart.series.push_back({"another order of the sum", points_of(places, "reordered", true)});
  std::erase_if(chart.series, [](const Series& series) { return series.points.empty(); });
  return chart.series.empty() ? paragraph(text("The traces have no product in common."), "note") : draw(chart);
}

Html place_table(const Json& places) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& place : items(places)) {
    if (rows.size() == kMostRows) break;
    rows.push_back(
        {string(place, "place"), string(place, "surface"), number_cell(number_text(number(place, "difference"))),
         number_cell(number_text(number(place, "own_a"))), number_cell(number_text(number(place, "own_b"))),
         number_cell(number_text(number(place, "allowed"))), number_cell(number_text(number(place, "reordered"))),
         number_cell(percent_text(number(place, "share_equal").value_or(0)))});
  }
  if (rows.empty()) return {};
  return folded(
      text(fmt::format("As numbers ({} places)", rows.size())),
      table({"place", "surface", "difference", "a's own", "b's own", "bound", "another order", "equal"}, rows));
}

Html wrong_table(const Json& document) {
  std::vector<std::vector<Cell>> rows;
  for (const char* side : {"a", "b"}) {
    for (const Json& one : items(at(at(document, side), "wrong"))) {
      if (rows.size() == kMostRows) break;
      rows.push_back({side, string(one, "place"), string(one, "operator"), string(one, "kind"), string(one, "detail"),
                      number_cell(number_text(number(one, "violations"))),
                      number_cell(number_text(number(one, "elements"))),
                      number_cell(number_text(number(one, "ratio")))});
    }
  }
  if (rows.empty()) return paragraph(text("No operator leaves its bound."), "note");
  return table({"side", "place", "operator", "kind", "detail", "wrong", "of", "times the bound"}, rows);
}

Html token_table(const Json& tokens) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& one : items(at(tokens, "worst"))) {
    const double a = number(one, "a").value_or(0), b = number(one, "b").value_or(0);
    rows.push_back({number_cell(number_text(number(one, "position"))), number_cell(number_text(number(one, "token"))),
                    number_cell(number_text(a)), number_cell(number_text(b)), number_cell(number_text(b - a))});
  }
  Html out = paragraph(text(fmt::format(
      "{} tokens. Log-probability of b minus a: mean {}, largest {}. KL: k1 {}, k3 {}. Effective sample share {}.",
      number_text(number(tokens, "tokens")), number_text(number(tokens, "mean")),
      number_text(number(tokens, "largest")), number_text(number(tokens, "kl_k1")),
      number_text(number(tokens, "kl_k3")), number_text(number(tokens, "effective_sample_share")))));
  return rows.empty() ? out : out + table({"position", "token", "a", "b", "b - a"}, rows);
}

Html sides(const Json& document) {
  std::vector<std::vector<Cell>> rows;
  for (const char* side : {"a", "b"}) {
    const Json& one = at(document, side);
    rows.push_back({side, string(one, "trace"), string(one, "engine"), string(one, "device"), string(one, "dtype"),
                    string(one, "detail"), number_cell(number_text(number(one, "judged"))),
                    number_cell(percent_text(number(one, "share_judged").value_or(0))),
                    number_cell(number_text(number(one, "elements")))});
  }
  return table(
      {"side", "trace", "engine", "device", "type", "detail", "calls judged", "of all that compute", "numbers judged"},
      rows);
}

// A fault there is not seen.
Html not_judged(const Json& document) {
  std::vector<std::vector<Cell>> rows;
  for (const char* side : {"a", "b"})
    for (const auto& [operation, count] : fields(at(at(document, side), "not_judged")).items())
      rows.push_back({side, operation, shown(count)});
  Html out;
  for (const Json& sentence : items(at(document, "unseen"))) out += paragraph(text(shown(sentence)), "note");
  return rows.empty() ? out : out + table({"side", "operator", "calls"}, rows);
}

Html sentences(const Json& list) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& one : items(list)) rows.push_back({shown(one)});
  return rows.empty() ? Html() : table({"note"}, rows);
}

}  // namespace

Story divergence_story(const LoadedRecord& record) {
  const Json& document = record.document;
  Story story;
  const std::string verdict = string(document, "verdict");
  story.tone = verdict == "wrong"                                        ? Tone::kBad
               : verdict == "within_rounding" || verdict == "equal_bits" ? Tone::kGood
                                                                         : Tone::kDoubt;
  story.headline = string(document, "sentence");
  story.words.emplace_back(
      "Each operator is judged by fp64 arithmetic on the inputs that it really had: a difference that came in accuses "
      "nobody.");
  story.sections.push_back({"Sides", sides(document)});
  story.sections.push_back({"Wrong operators", wrong_table(document)});
  if (Html missing = not_judged(document); !missing.empty())
    story.sections.push_back({"What was not judged", std::move(missing)});
  story.sections.push_back(
      {"Growth of the difference", growth(at(document, "places")) + place_table(at(document, "places"))});
  if (number(at(document, "tokens"), "tokens").value_or(0) > 0)
    story.sections.push_back({"Tokens", token_table(at(document, "tokens"))});
  Html notes = sentences(at(document, "remarks")) + sentences(at(document, "without_partner"));
  if (!notes.empty()) story.sections.push_back({"Notes, and what has no partner", std::move(notes)});
  return story;
}

}  // namespace faultline::report
