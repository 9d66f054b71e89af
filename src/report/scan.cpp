// The story of a scan: what each number format does to a model's weights, to what its linears read and to what its
// layers hand on. Grids show the relative error 10^(-SQNR/20), which is the strength that noise of the same energy has
// in a recipe; decibels stand where formats are compared.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr std::size_t kMostWorst = 30;
struct Row {
  int64_t layer = -1;           // -1: outside the layers
  std::string place, linear;    // linear: its name below the layer, experts taken together
  std::string surface, format;  // surface: weight, input, layer_output
  std::optional<double> db;     // none: exact
  double strength() const { return db ? std::pow(10.0, -*db / 20) : 0; }
};

// "model.layers.7.mlp.experts.3.up_proj" -> "mlp.experts.*.up_proj"; "": the layer itself.
std::string below_layer(const std::string& place, int64_t layer) {
  const std::string mark = fmt::format(".{}", layer);
  const std::size_t found = place.find(mark);
  if (layer < 0 || found == std::string::npos) return place;
  std::string name = place.substr(std::min(place.size(), found + mark.size() + 1));
  if (const std::size_t expert = name.find("experts."); expert != std::string::npos) {
    const std::size_t from = expert + 8, to = std::min(name.find('.', from), name.size());
    name.replace(from, to - from, "*");
  }
  return name;
}

std::vector<Row> rows_of(const Json& document) {
  std::vector<Row> rows;
  for (const Json& one : items(at(document, "rows"))) {
    const double layer = number(one, "layer").value_or(-1);
    Row row;
    row.layer = layer >= 0 && layer < kMostLayers ? static_cast<int64_t>(layer) : -1;
    row.place = string(one, "place"), row.surface = string(one, "surface"), row.format = string(one, "format");
    row.linear = below_layer(row.place, row.layer);
    row.db = number(one, "sqnr_db");
    rows.push_back(std::move(row));
  }
  return rows;
}

// In the order in which they first stand there: the records' rows are sorted, worst first.
std::vector<std::string> distinct(const std::vector<Row>& rows, std::string Row::* field) {
  std::vector<std::string> found;
  for (const Row& row : rows)
    if (std::find(found.begin(), found.end(), row.*field) == found.end()) found.push_back(row.*field);
  return found;
}

std::vector<Row> chosen(const std::vector<Row>& rows, std::string Row::* field, const std::string& value) {
  std::vector<Row> found;
  for (const Row& row : rows)
    if (row.*field == value) found.push_back(row);
  return found;
}

std::string db_text(const std::optional<double>& db) { return db ? fmt::format("{:.2f} dB", *db) : "exact"; }

const char* surface_words(const std::string& surface) {
  return surface == "weight" ? "Weights" : surface == "input" ? "What linears read" : "Layer outputs";
}

// Median and range over the tensors of one surface, a row for each format.
Html compared(const std::vector<Row>& rows, const std::string& surface) {
  IntervalChart chart{
      .title = fmt::format("{}: signal over rounding error in dB, median and range over the tensors; more is better",
                           surface_words(surface))};
  const std::vector<Row> here = chosen(rows, &Row::surface, surface);
  for (const std::string& format : distinct(here, &Row::format)) {
    std::vector<double> all;
    std::size_t exact = 0;
    for (const Row& row : chosen(here, &Row::format, format)) {
      if (row.db)
        all.push_back(*row.db);
      else
        ++exact;
    }
    std::sort(all.begin(), all.end());
    if (all.empty()) {
      chart.rows.push_back({.label = format, .note = fmt::format("exact in all {} tensors", exact)});
      continue;
    }
    const double middle = all[all.size() / 2];
    std::string note = fmt::format("{:.1f} ({:.1f} to {:.1f})", middle, all.front(), all.back());
    if (exact > 0) note += fmt::format(", {} exact", exact);
    chart.rows.push_back({.label = format, .value = middle, .range = {{all.front(), all.back()}}, .note = note});
  }
  return draw(chart);
}

// Strengths by layer, a line for each value of `lines`; of several tensors in one cell the worst.
Html grid(const std::string& title, const std::vector<Row>& rows, std::string Row::* lines) {
  int64_t layers = 0;
  for (const Row& row : rows) layers = std::max(layers, row.layer + 1);
  GridChart chart{.title = title, .rows = distinct(rows, lines), .column_label = "layer"};
  if (lines == &Row::linear) std::sort(chart.rows.begin(), chart.rows.end());  // alike in every picture
  for (int64_t layer = 0; layer < layers; ++layer) chart.columns.push_back(std::to_string(layer));
  for (const std::string& line : chart.rows) {
    std::vector<std::optional<double>> cells(chart.columns.size());
    for (const Row& row : chosen(rows, lines, line)) {
      if (row.layer < 0) continue;
      std::optional<double>& cell = cells[static_cast<std::size_t>(row.layer)];
      cell = std::max(cell.value_or(0), row.strength());
    }
    chart.values.insert(chart.values.end(), cells.begin(), cells.end());
  }
  return draw(chart);
}

// A picture for each format with a line for each linear, or the other way round: whichever makes fewer pictures.
Html linears(const std::vector<Row>& rows, const std::string& surface) {
  std::vector<Row> here = chosen(rows, &Row::surface, surface);
  std::erase_if(here, [](const Row& row) { return row.layer < 0; });
  const std::vector<std::string> formats = distinct(here, &Row::format), names = distinct(here, &Row::linear);
  const bool by_format = formats.size() <= names.size();
  Html out;
  for (const std::string& one : by_format ? formats : names)
    out += grid(fmt::format("{}, {}: relative error by {} and layer", surface_words(surface), one,
                            by_format ? "linear" : "format"),
                chosen(here, by_format ? &Row::format : &Row::linear, one), by_format ? &Row::linear : &Row::format);
  return out;
}

Html strengths(const Json& document) {
  const Json& suggested = fields(at(document, "suggested"));
  std::map<int64_t, std::vector<Cell>> by_layer;
  std::vector<std::string> heading = {"layer"};
  for (const auto& [format, layers] : suggested.items()) {
    for (const auto& [layer, strength] : fields(layers).items()) {
      const int64_t index = std::atoll(layer.c_str());
      std::vector<Cell>& cells = by_layer.try_emplace(index, std::vector<Cell>{number_cell(layer)}).first->second;
      cells.resize(heading.size(), number_cell("exact"));
      cells.push_back(number_cell(number_text(number(strength))));
    }
    heading.push_back(format);
  }
  std::vector<std::vector<Cell>> rows;
  for (auto& [layer, cells] : by_layer) {
    cells.resize(heading.size(), number_cell("exact"));
    rows.push_back(std::move(cells));
  }
  if (rows.empty()) return {};
  return folded(text(fmt::format("Suggested strengths as numbers ({} layers)", rows.size())), table(heading, rows));
}

Html worst(const Json& document) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& one : items(at(document, "rows"))) {
    if (rows.size() == kMostWorst) break;
    rows.push_back(
        {string(one, "place"), string(one, "surface"), string(one, "format"),
         number_cell(db_text(number(one, "sqnr_db"))), number_cell(percent_text(number(one, "dead_zone").value_or(0))),
         number_cell(percent_text(number(one, "clipped").value_or(0))),
         number_cell(number_text(number(one, "max_error"))), number_cell(number_text(number(one, "outlier")))});
  }
  return table({"tensor", "surface", "format", "SQNR", "lost to zero", "clipped", "largest error", "outlier"}, rows);
}

}  // namespace

Story scan_story(const LoadedRecord& record) {
  Story story;
  const std::vector<Row> rows = rows_of(record.document);
  if (rows.empty()) {
    story.tone = Tone::kDoubt;
    story.headline = "Nothing was scanned.";
    return story;
  }
  const Row& first = rows.front();
  const std::vector<std::string> formats = distinct(rows, &Row::format);
  story.headline = fmt::format("{} number format{} on {} tensors; the worst: {} of {} in {}, {}.", formats.size(),
                               formats.size() == 1 ? "" : "s", rows.size() / formats.size(),
                               first.surface == "layer_output" ? "output" : first.surface, first.place, first.format,
                               db_text(first.db));
  story.words.emplace_back(
      "A relative error is 10^(-SQNR/20): the strength of noise with the same energy, as in "
      "relative_gaussian(strength=…). 0.1 is 20 dB, 0.01 is 40 dB.");
  Html sides, inner;
  for (const std::string surface : {"layer_output", "input", "weight"}) {
    if (chosen(rows, &Row::surface, surface).empty()) continue;
    sides += compared(rows, surface);
    if (surface != "layer_output") inner += linears(rows, surface);
  }
  story.sections.push_back({"Formats side by side", std::move(sides)});
  if (const std::vector<Row> outputs = chosen(rows, &Row::surface, "layer_output"); !outputs.empty())
    story.sections.push_back(
        {"Suggested strengths by layer",
         grid("Layer outputs: relative error, the strength that noise would have", outputs, &Row::format) +
             strengths(record.document)});
  if (!inner.empty()) story.sections.push_back({"Linears", std::move(inner)});
  story.sections.push_back({"Worst tensors", worst(record.document)});
  return story;
}

}  // namespace faultline::report
