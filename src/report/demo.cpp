// The story of a demo: six acts told with the parts that other kinds have. What an evaluation, a diagnosis or a race
// shows of itself is shown here too, drawn from the same numbers.
#include <fmt/format.h>

#include <algorithm>

#include "report/chart.h"
#include "report/field.h"
#include "report/story.h"

namespace faultline::report {
namespace {

const Json& act_of(const LoadedRecord& record, std::string_view name) {
  static const Json nothing;
  for (const Json& act : items(at(record.results(), "acts")))
    if (string(act, "act") == name) return at(act, "record");
  return nothing;
}

LoadedRecord part_of(const LoadedRecord& whole, const char* kind, Json results) {
  LoadedRecord part;
  part.path = whole.path, part.name = whole.name, part.kind = kind;
  part.manifest = whole.manifest, part.events = whole.events;
  part.summary = record::Summary{.results = std::move(results)};
  return part;
}

void append(std::vector<Section>& sections, const Story& story, const std::string& title) {
  Html body = paragraph(text(story.headline), "lead");
  for (const std::string& sentence : story.words) body += paragraph(text(sentence), "note");
  sections.push_back({title, std::move(body)});
  for (const Section& section : story.sections) {
    sections.back().body += element("h3", text(section.title)) + markup("\n") + section.body;
  }
}

Html census_tables(const Json& census) {
  std::vector<std::string> forwards, families;
  for (const auto& [forward, sums] : fields(at(census, "forwards")).items()) {
    forwards.push_back(forward);
    for (const auto& [family, sum] : fields(sums).items())
      if (std::find(families.begin(), families.end(), family) == families.end()) families.push_back(family);
  }
  std::vector<std::vector<Cell>> rows;
  for (const std::string& family : families) {
    std::vector<Cell> row = {family};
    for (const std::string& forward : forwards) {
      const Json& sum = at(at(at(census, "forwards"), forward), family);
      row.push_back(number_cell(number_text(number(sum, "calls"))));
      const std::optional<double> flops = number(sum, "flops");
      row.push_back(number_cell(flops ? number_text(*flops / 1e6) : "–"));
    }
    rows.push_back(std::move(row));
  }
  std::vector<std::string> heading = {"family"};
  for (const std::string& forward : forwards) heading.insert(heading.end(), {forward + ", calls", "MFLOP"});
  return paragraph(text(fmt::format("{}: {} layers, {} parameters. Operators of one forward, by the family that a rule "
                                    "names; taken from live forwards, never from a list.",
                                    string(census, "model"), number_text(number(census, "layers")),
                                    number_text(number(census, "parameters"))))) +
         table(heading, rows);
}

Html speech_table(const Json& speech) {
  const auto cell = [](const char* title, const char* tone, const std::string& said) {
    return Cell(element("div", text(title), tone) + element("pre", markup("\n") + text(said, 1200)));
  };
  Html out = paragraph(text("Asked: " + string(speech, "question")));
  out += table({}, {{cell("clean", "good", string(speech, "clean")), cell("broken", "bad", string(speech, "broken"))}});
  return out + paragraph(text(at(speech, "same") == true
                                  ? std::string("Both answers are the same, token for token.")
                                  : fmt::format("The answers part at token {}.", string(speech, "parted_at"))),
                         "note");
}

// Every layer once: where the fault was planted, where the diagnosis pointed.
Html layer_strip(const Json& diagnosis, double layers) {
  if (!(layers >= 1 && layers <= 1000)) return {};
  const std::optional<double> planted = number(at(diagnosis, "planted"), "layer");
  GridChart chart{.title = "Layers: where the fault was planted, whom the diagnosis accuses (1: the first accusation)",
                  .rows = {"planted", "accused"},
                  .column_label = "layer"};
  std::vector<std::optional<double>> accused(static_cast<std::size_t>(layers), 0.0);
  const Json& candidates = items(at(at(diagnosis, "verdict"), "candidates"));
  for (std::size_t i = candidates.size(); i-- > 0;) {
    const double layer = number(candidates[i], "layer").value_or(-1);
    if (layer >= 0 && layer < layers)
      accused[static_cast<std::size_t>(layer)] = 1.0 / static_cast<double>(std::min<std::size_t>(i + 1, 3));
  }
  for (double layer = 0; layer < layers; ++layer) {
    chart.columns.push_back(number_text(layer));
    chart.values.emplace_back(planted && *planted == layer ? 1.0 : 0.0);
  }
  chart.values.insert(chart.values.end(), accused.begin(), accused.end());
  return draw(chart);
}

Story diagnosis_story(const LoadedRecord& record, const Json& act) {
  Story story = diagnosis_story(part_of(record, "diagnose", at(act, "verdict")));
  return story;
}

std::string found_words(const Json& diagnosis) {
  if (at(diagnosis, "layer_right") == true && at(diagnosis, "kind_right") == true)
    return fmt::format("The diagnosis named layer {} and the kind, {}.", string(diagnosis, "accused_layer"),
                       string(at(diagnosis, "planted"), "kind"));
  if (at(diagnosis, "layer_right") == true)
    return fmt::format("The diagnosis named layer {}, but not the kind: planted was {}.",
                       string(diagnosis, "accused_layer"), string(at(diagnosis, "planted"), "kind"));
  return at(diagnosis, "accused_layer").is_null()
             ? "The diagnosis did not find the planted fault."
             : fmt::format("The diagnosis accused layer {}; the fault was in layer {}.",
                           string(diagnosis, "accused_layer"), string(at(diagnosis, "planted"), "layer"));
}

// ---- hardening

IntervalChart arms_chart(const Json& arms) {
  IntervalChart chart{.title = "Additions without examples: clean and under the fault, 95 % intervals (Wilson)",
                      .unit = Unit::kShare,
                      .axis = std::pair(0.0, 1.0)};
  for (const Json& arm : arms) {
    for (const auto& [key, label, tone] : {std::tuple("clean", "clean", "c0"), std::tuple("faulty", "faulty", "c1")}) {
      const Json& share = at(arm, key);
      chart.rows.push_back({.label = fmt::format("{}, {}", string(arm, "arm"), label),
                            .value = number(share, "accuracy"),
                            .range = interval(share, "interval"),
                            .note = fmt::format("{}/{}", string(share, "right"), string(share, "problems")),
                            .tone = tone});
    }
  }
  return chart;
}

Html curves(const Json& arms) {
  std::vector<Html> drawn;
  for (const Json& arm : arms) {
    Series series{string(arm, "arm"), {}};
    double step = 0;
    for (const Json& value : items(at(arm, "curve")))
      if (const auto y = number(value)) series.points.push_back({++step, *y});
    if (series.points.size() < 2) continue;
    const bool supervised = string(arm, "arm") == "sft";
    drawn.push_back(draw(LineChart{.title = fmt::format("{}: {} by step", string(arm, "arm"),
                                                        supervised ? "loss" : "mean reward of the noisy rollouts"),
                                   .series = {series},
                                   .small = true}));
  }
  return drawn.empty() ? Html() : side_by_side(drawn);
}

Html hardening(const Json& act) {
  const Json &arms = items(at(act, "arms")), &compared = at(act, "comparison");
  Html out;
  if (const auto range = interval(compared, "interval")) {
    out += paragraph(text(fmt::format("{} against {}, under the fault: {:+.1f} points ({:+.1f} to {:+.1f}): {}.",
                                      string(compared, "treated"), string(compared, "control"),
                                      100 * number(compared, "difference").value_or(0), 100 * range->first,
                                      100 * range->second, string(compared, "verdict"))),
                     "lead");
    out += paragraph(text("One seed and few steps: the interval is of the problems alone. A real experiment pairs arms "
                          "over many seeds (`faultline run recipes/experiments/deadzone-guided.yaml`)."),
                     "note");
  } else {
    out += paragraph(text("No layer was accused, so guided noise had nothing to be guided by."), "lead");
  }
  out += draw(arms_chart(arms)) + curves(arms);
  std::vector<std::vector<Cell>> rows;
  for (const Json& arm : arms) {
    const Json& rule = at(at(arm, "training_rules"), std::size_t{0});
    rows.push_back({string(arm, "arm"), number_cell(number_text(number(rule, "calls"))),
                    number_cell(number_text(number(rule, "changed"))), number_cell(number_text(number(arm, "changed"))),
                    string(arm, "record")});
  }
  return out + table({"run", "faulted calls in training", "elements changed", "changed while judged", "record"}, rows);
}

std::string headline_of(const LoadedRecord& record) {
  const Json &damage = act_of(record, "damage"), &diagnosis = act_of(record, "diagnosis");
  if (at(record.results(), "passed") == true && at(diagnosis, "kind_right") == true)
    return fmt::format("{} in layer {} was planted, seen, found and named; a flipped bit in a collective was caught.",
                       string(damage, "kind"), string(damage, "layer"));
  if (at(record.results(), "passed") == true)
    return fmt::format("{} in layer {} was planted, seen and found; a flipped bit in a collective was caught.",
                       string(damage, "kind"), string(damage, "layer"));
  return "Not every act went as it should.";
}

}  // namespace

Story demo_story(const LoadedRecord& record) {
  Story story;
  const bool passed = at(record.results(), "passed") == true;
  story.tone = passed ? Tone::kGood : Tone::kBad;
  story.headline = headline_of(record);
  const Json &census = act_of(record, "census"), &healthy = act_of(record, "healthy"),
             &damage = act_of(record, "damage"), &diagnosis = act_of(record, "diagnosis"),
             &harden = act_of(record, "hardening"), &race = act_of(record, "race");
  const Story before = diagnosis_story(record, healthy);
  const Story evaluated = eval_story(part_of(record, "eval", {{"kind", "eval"}, {"rows", at(damage, "rows")}}));
  story.words.push_back("Before: " + before.headline);
  story.words.push_back(fmt::format("Planted: {}. {}", string(damage, "fault"), evaluated.headline));
  story.words.push_back(found_words(diagnosis));
  if (const Json& compared = at(harden, "comparison"); compared.is_object())
    story.words.push_back(
        fmt::format("Guided against global noise after a few steps: {}.", string(compared, "verdict")));
  const Story broken = race_story(part_of(record, "race", at(race, "broken")));
  story.words.push_back("Network: " + string(at(race, "broken"), "sentence") + ".");

  Section spoken{"A fault is planted: " + string(damage, "fault"), speech_table(at(damage, "speech"))};
  story.sections.push_back(std::move(spoken));
  append(story.sections, evaluated, "What it does to numbers");
  append(story.sections, diagnosis_story(record, diagnosis), "Who is to blame?");
  story.sections.back().body =
      layer_strip(diagnosis, number(census, "layers").value_or(0)) + story.sections.back().body;
  if (harden.is_object()) story.sections.push_back({"Can training harden it?", hardening(harden)});
  append(story.sections, broken, "Was it the network?");
  append(story.sections, before, "The model before");
  story.sections.push_back({"What runs where", census_tables(census)});
  return story;
}

}  // namespace faultline::report
