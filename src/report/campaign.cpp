// The story of a campaign of diagnoses: trials with a planted fault and what each method said about it. Everything is
// added up here, in one pass over the trials; the page holds sums, never the trials, so ten thousand of them make no
// longer page than ten.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/stats/stats.h"
#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostPools = 120;

struct Rates {
  int64_t trials = 0, layer = 0, place = 0, kind = 0;
};

struct Tally {  // of one method
  Rates all;
  std::map<std::string, std::map<std::string, int64_t>> said;  // planted kind -> said kind
  std::map<std::string, std::map<std::string, Rates>> pools;   // planted kind -> class of site
  std::map<std::string, std::map<double, Rates>> by_extent;    // planted kind -> share of channels
  std::map<std::string, std::map<double, Rates>> by_strength;  // planted kind -> strength, where trials tell it
  Rates intermittent;                                          // faults that act in few calls
  int64_t healthy = 0, flagged = 0;
};

void add(Rates& rates, const Json& said) {
  ++rates.trials;
  rates.layer += at(said, "layer_right") == true, rates.place += at(said, "place_right") == true;
  rates.kind += at(said, "kind_right") == true;
}

void count(const Json& trial, std::map<std::string, Tally>& methods) {
  const Json& outcome = at(trial, "outcome");
  if (at(outcome, "inactive") == true) return;
  for (const auto& [method, said] : fields(outcome).items()) {
    if (!said.is_object() || !said.contains("found")) continue;
    Tally& tally = methods[method];
    const bool found = at(said, "found") == true;
    if (string(trial, "cell") == "healthy") {
      ++tally.healthy, tally.flagged += found;
      continue;
    }
    const std::string kind = string(outcome, "planted_kind"), cell = string(trial, "cell");
    if (cell.starts_with("curve ")) {  // strengths down to what nobody can see: not part of the rates
      if (const auto strength = number(outcome, "strength")) add(tally.by_strength[kind][*strength], said);
      continue;
    }
    if (cell == "intermittent") {
      add(tally.intermittent, said);
      continue;
    }
    add(tally.all, said);
    ++tally.said[kind][found ? string(said, "kind") : "healthy"];
    if (const std::string pool = string(outcome, "pool"); !pool.empty()) add(tally.pools[kind][pool], said);
    if (const auto extent = number(outcome, "extent")) add(tally.by_extent[kind][*extent], said);
  }
}

double share(int64_t right, int64_t trials) { return static_cast<double>(right) / static_cast<double>(trials); }

std::string rate_text(int64_t right, int64_t trials) {
  const Interval range = clopper_pearson_interval(right, trials);
  return fmt::format("{}/{} ({} to {})", right, trials, percent_text(range.low), percent_text(range.high));
}

IntervalChart rates_chart(const std::string& method, const Tally& tally) {
  IntervalChart chart{
      .title = fmt::format("{}: planted faults named rightly, 95 % intervals (Clopper-Pearson)", method),
      .unit = Unit::kShare,
      .axis = std::pair(0.0, 1.0)};
  const auto row = [&](const char* label, int64_t right, int64_t trials, const char* tone) {
    if (trials == 0) return;
    const Interval range = clopper_pearson_interval(right, trials);
    chart.rows.push_back({.label = label,
                          .value = share(right, trials),
                          .range = std::pair(range.low, range.high),
                          .note = fmt::format("{} ({}/{})", percent_text(share(right, trials)), right, trials),
                          .tone = tone});
  };
  row("layer", tally.all.layer, tally.all.trials, "c0");
  row("layer and operator", tally.all.place, tally.all.trials, "c0");
  row("kind", tally.all.kind, tally.all.trials, "c0");
  row("layer of intermittent faults", tally.intermittent.layer, tally.intermittent.trials, "c0");
  row("healthy models accused", tally.flagged, tally.healthy, tally.flagged > 0 ? "bad" : "good");
  return chart;
}

Html confusion_of(const std::string& method, const Tally& tally) {
  GridChart chart{.title = fmt::format("{}: planted kind (rows) and what was said (columns)", method), .damage = false};
  std::set<std::string> said;
  for (const auto& [planted, answers] : tally.said)
    for (const auto& [answer, n] : answers) said.insert(answer);
  chart.columns.assign(said.begin(), said.end());
  chart.write_values = chart.columns.size() <= 8;
  for (const auto& [planted, answers] : tally.said) {
    chart.rows.push_back(planted);
    for (const std::string& answer : chart.columns) {
      const auto n = answers.find(answer);
      chart.values.emplace_back(n == answers.end() ? 0.0 : static_cast<double>(n->second));
    }
  }
  return draw(chart);
}

Html curves_over(const std::map<std::string, std::map<double, Rates>>& by_kind, const std::string& title,
                 const char* x_label) {
  std::vector<Html> drawn;
  for (const auto& [kind, points] : by_kind) {
    if (points.size() < 2) continue;
    LineChart chart{
        .title = fmt::format("{}: {}", kind, title), .x_label = x_label, .unit = Unit::kShare, .small = true};
    chart.log_x = points.begin()->first > 0;
    Series series{kind, {}};
    for (const auto& [x, rates] : points) {
      const Interval range = clopper_pearson_interval(rates.layer, rates.trials);
      series.points.push_back({x, share(rates.layer, rates.trials), std::pair(range.low, range.high)});
    }
    chart.series.push_back(std::move(series));
    drawn.push_back(draw(chart));
  }
  return drawn.empty() ? Html() : side_by_side(drawn);
}

// Kind of fault x class of site: the share of layers named rightly, and all numbers below it.
Html pools_of(const std::string& method, const Tally& tally) {
  std::set<std::string> pools;
  for (const auto& [kind, by_pool] : tally.pools)
    for (const auto& [pool, rates] : by_pool) pools.insert(pool);
  if (pools.empty()) return {};
  GridChart chart{.title = fmt::format("{}: layer named rightly, by kind (rows) and class of site (columns)", method),
                  .columns = {pools.begin(), pools.end()},
                  .unit = Unit::kShare,
                  .damage = false};
  chart.write_values = pools.size() <= 8;
  std::vector<std::vector<Cell>> rows;
  for (const auto& [kind, by_pool] : tally.pools) {
    chart.rows.push_back(kind);
    for (const std::string& pool : chart.columns) {
      const auto found = by_pool.find(pool);
      if (found == by_pool.end()) {
        chart.values.emplace_back(std::nullopt);
        continue;
      }
      const Rates& rates = found->second;
      chart.values.emplace_back(share(rates.layer, rates.trials));
      if (rows.size() < kMostPools)
        rows.push_back({kind, pool, number_cell(rate_text(rates.layer, rates.trials)),
                        number_cell(rate_text(rates.place, rates.trials)),
                        number_cell(rate_text(rates.kind, rates.trials))});
    }
  }
  return draw(chart) + folded(text(fmt::format("Pools with intervals ({})", rows.size())),
                              table({"kind", "class of site", "layer", "layer and operator", "kind named"}, rows));
}

Html method_section(const std::string& method, const Tally& tally) {
  Html body = draw(rates_chart(method, tally));
  body += confusion_of(method, tally) + pools_of(method, tally);
  Html curves = curves_over(tally.by_extent, "layer named, over the share of channels", "share of channels");
  curves += curves_over(tally.by_strength, "layer named, over strength", "strength");
  if (!curves.empty()) body += element("h3", text("Detectability, with 95 % intervals")) + curves;
  return body;
}

}  // namespace

Story campaign_story(const LoadedRecord& record) {
  std::map<std::string, Tally> methods;
  for (const Json& trial : record.events) count(trial, methods);
  if (methods.empty()) return anything_story(record);
  Story story;
  int64_t flagged = 0, healthy = 0;
  for (const auto& [method, tally] : methods) {
    // Among other methods classic is there to be compared, not believed: it has no error rate.
    if (method != "classic" || methods.size() == 1) flagged += tally.flagged, healthy += tally.healthy;
    story.words.push_back(
        fmt::format("{}: the layer was named in {} of {} planted faults, the kind in {}; {} of {} "
                    "healthy models were accused.",
                    method, tally.all.layer, tally.all.trials, tally.all.kind, tally.flagged, tally.healthy));
    story.sections.push_back({"Method " + method, method_section(method, tally)});
  }
  story.tone = flagged > 0 ? Tone::kBad : Tone::kPlain;
  story.headline = flagged > 0   ? fmt::format("{} of {} diagnoses of healthy models accused them.", flagged, healthy)
                   : healthy > 0 ? fmt::format("No false accusation in {} diagnoses of healthy models.", healthy)
                                 : std::string("A campaign of planted faults; no healthy model was examined.");
  return story;
}

}  // namespace faultline::report
