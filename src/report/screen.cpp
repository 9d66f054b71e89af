// The story of a screen, of one device or of a fleet: verdicts first, then the bound with its counts, what was wrong
// and where, who the devices are and in which weather they worked, and what was not tested.
#include <fmt/format.h>

#include <algorithm>

#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

std::string count_text(const Json& object, std::string_view key) { return number_text(number(object, key)); }

std::string most(const Json& bound) {
  const double n = number(bound, "at_most_one_in").value_or(0);
  return n > 0 ? fmt::format("1 in {}", number_text(n)) : "–";
}

std::string_view tone_of(const std::string& verdict) {
  return verdict == "healthy" ? "good" : verdict == "faulty" ? "bad" : "doubt";
}

std::string known(const Json& value) {
  if (value.is_object()) return fmt::format("absent: {}", string(value, "absent"));
  return value.is_null() ? "–" : shown(value);
}

Html bounds(const Json& screen) {
  std::vector<std::vector<Cell>> rows;
  for (const auto& [name, group] : fields(at(screen, "groups")).items())
    rows.push_back({name, number_cell(count_text(group, "launches")), number_cell(count_text(group, "wrong")),
                    number_cell(count_text(group, "elements")), number_cell(count_text(group, "bytes")),
                    number_cell(most(group))});
  const Json& all = at(at(screen, "bound"), "launches");
  rows.push_back({"all launches", number_cell(count_text(all, "tested")), number_cell(count_text(all, "wrong")),
                  number_cell("–"), number_cell("–"), number_cell(most(all))});
  return table({"what", "launches", "wrong", "elements", "bytes", "wrong at most, 95 %"}, rows);
}

Html failures(const Json& screen) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& one : items(at(screen, "failures"))) {
    std::string place = fmt::format("element {}", count_text(one, "element"));
    if (one.contains("row"))
      place = fmt::format("row {}, column {}, tile {}, lane {}", count_text(one, "row"), count_text(one, "column"),
                          joined(at(one, "tile"), "/"), count_text(one, "lane"));
    if (const std::string stage = string(one, "stage"); !stage.empty()) place += ", " + stage;
    if (one.contains("core")) place += fmt::format(", core {}", count_text(one, "core"));
    rows.push_back({string(one, "check"), place,
                    fmt::format("{} → {}", string(one, "expected_bits"), string(one, "observed_bits")),
                    string(at(one, "again"), "text"),
                    fmt::format("{}, {}", string(one, "suspect"), string(one, "certainty")), string(one, "sentence")});
  }
  if (rows.empty()) return {};
  return table({"check", "first wrong place", "bits", "again", "suspicion", "why"}, rows);
}

Html facts(const Json& screen) {
  std::vector<std::vector<Cell>> rows;
  for (const auto& [key, value] : fields(at(screen, "identity")).items()) rows.push_back({key, known(value), "", ""});
  const Json& weather = at(screen, "weather");
  for (const auto& [key, value] : fields(at(weather, "before")).items())
    rows.push_back({key, "", known(value), known(at(at(weather, "after"), key))});
  return table({"what", "identity", "before", "after"}, rows);
}

Html cores(const Json& screen) {
  std::vector<std::vector<Cell>> rows;
  for (const Json& core : items(at(screen, "cores"))) {
    std::string launches, wrong;
    double bad = 0;
    for (const auto& [part, counts] : fields(core).items()) {
      if (!counts.is_object()) continue;
      launches += fmt::format("{}{} {}", launches.empty() ? "" : ", ", part, count_text(counts, "launches"));
      wrong += fmt::format("{}{} {}", wrong.empty() ? "" : ", ", part, count_text(counts, "wrong"));
      bad += number(counts, "wrong").value_or(0);
    }
    rows.push_back({number_cell(count_text(core, "core")), launches, Cell(text(wrong), false, bad > 0 ? "bad" : "")});
  }
  if (rows.empty()) return {};
  return table({"core", "launches", "wrong"}, rows);
}

Html list_of(const Json& sentences) {
  Html out;
  for (const Json& sentence : items(sentences)) out += paragraph(text(shown(sentence)));
  return out;
}

Html rates(const Json& screen) {
  std::vector<std::vector<Cell>> rows;
  for (const auto& [what, rate] : fields(at(screen, "rates")).items())
    rows.push_back({what, string(rate, "unit"), number_cell(count_text(rate, "plain")),
                    number_cell(count_text(rate, "screening")),
                    number_cell(percent_text(number(rate, "share").value_or(0)))});
  return rows.empty() ? Html() : table({"what", "unit", "plain", "while screening", "share"}, rows);
}

Html earlier(const Json& screen) {
  const Json& before = at(screen, "earlier");
  if (number(before, "screens").value_or(0) == 0) return {};
  Html out =
      paragraph(text(fmt::format("{} earlier screens of this device; over all of them at most {} launches wrong.",
                                 count_text(before, "screens"), most(at(before, "all_screens")))));
  for (const Json& one : items(at(before, "identity_changed")))
    out += paragraph(text(
        fmt::format("{} was {} and is {}.", string(one, "what"), known(at(one, "before")), known(at(one, "now")))));
  for (const auto& [key, value] : fields(at(before, "counters_rose_since")).items())
    out += paragraph(text(fmt::format("{} rose by {} since the last screen.", key, shown(value))));
  return out;
}

void add(Story& story, const std::string& title, Html body) {
  if (!body.empty()) story.sections.push_back({title, std::move(body)});
}

void add_device(Story& story, const Json& screen, const std::string& before) {
  add(story, before + "What was wrong", failures(screen));
  add(story, before + "What was tested", bounds(screen));
  add(story, before + "Cores", cores(screen));
  add(story, before + "Rates", rates(screen));
  add(story, before + "Not tested", list_of(at(screen, "not_tested")));
  add(story, before + "Broken off", list_of(at(screen, "broken_off")));
  add(story, before + "Earlier screens", earlier(screen));
  add(story, before + "Identity and weather", facts(screen));
}

Tone tone_for(const std::string& verdict) {
  return verdict == "healthy" ? Tone::kGood : verdict == "faulty" ? Tone::kBad : Tone::kDoubt;
}

}  // namespace

Story screen_story(const LoadedRecord& record) {
  Story story;
  const std::string verdict = string(record.document, "verdict");
  story.tone = tone_for(verdict);
  story.headline = fmt::format("{}: {}. {}.", string(record.document, "device"),
                               verdict.empty() ? "no verdict" : verdict, string(record.document, "sentence"));
  const Json& canaries = at(record.document, "canaries");
  story.words.push_back(fmt::format("Canaries: {} of {} planted faults of its own were seen.",
                                    count_text(canaries, "seen"), count_text(canaries, "planted")));
  add_device(story, record.document, "");
  return story;
}

Story fleet_story(const LoadedRecord& record) {
  Story story;
  const Json& devices = items(at(record.document, "devices"));
  std::vector<std::vector<Cell>> rows;
  std::size_t faulty = 0, healthy = 0;
  for (const Json& one : devices) {
    const std::string verdict = string(one, "verdict");
    faulty += verdict == "faulty" ? 1 : 0, healthy += verdict == "healthy" ? 1 : 0;
    const Json& identity = at(one, "identity");
    rows.push_back({string(identity, "host"), string(one, "device"), known(at(one, "id")),
                    Cell(text(verdict), false, tone_of(verdict)), number_cell(most(at(at(one, "bound"), "launches"))),
                    string(one, "sentence")});
  }
  story.tone = devices.empty()             ? Tone::kDoubt
               : faulty > 0                ? Tone::kBad
               : healthy == devices.size() ? Tone::kGood
                                           : Tone::kDoubt;
  story.headline = fmt::format("{} devices: {} healthy, {} faulty, {} inconclusive.", devices.size(), healthy, faulty,
                               devices.size() - healthy - faulty);
  story.sections.push_back(
      {"Devices", table({"host", "device", "id", "verdict", "wrong at most, 95 %", "in words"}, rows)});
  for (const Json& one : devices)
    if (string(one, "verdict") != "healthy")
      add_device(story, one, fmt::format("{} {}: ", string(at(one, "identity"), "host"), string(one, "device")));
  return story;
}

}  // namespace faultline::report
