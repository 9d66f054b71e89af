#include "cli/evaluation_output.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/progress.h"
#include "cli/interruption.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "record/run_directory.h"

namespace faultline::cli {
namespace {

std::vector<std::string> table_row(const Json& row, bool has_task, bool has_text) {
  std::vector<std::string> cells = {row["label"]};
  const bool missing = row.contains("complaints") && !row["complaints"].empty();
  if (has_task) {
    if (missing) {
      cells.insert(cells.end(), {"evidence missing", "", ""});
    } else {
      const Json& task = row["task"];
      cells.push_back(fmt::format("{} ({}/{})", percent(task["accuracy"]), task["correct"].get<int64_t>(),
                                  task["questions"].get<int64_t>()));
      cells.push_back(fmt::format("{} to {}", percent(task["interval"][0]), percent(task["interval"][1])));
      cells.push_back(task.contains("p_mcnemar") ? fmt::format("{:.2g}", task["p_mcnemar"].get<double>()) : "");
    }
  }
  if (has_text) {
    if (missing) {
      cells.insert(cells.end(), {"evidence missing", ""});
    } else {
      const Json& text = row["text"];
      cells.push_back(fmt::format("{:.3f}", text["perplexity"].get<double>()));
      cells.push_back(text.contains("added_nats")
                          ? fmt::format("{:+.4f} [{:+.4f}, {:+.4f}]", text["added_nats"].get<double>(),
                                        text["added_nats_interval"][0].get<double>(),
                                        text["added_nats_interval"][1].get<double>())
                          : "");
    }
  }
  return cells;
}

void show(const Json& rows, const std::vector<lab::EvaluationRow>& measured, const Globals& globals) {
  const bool has_task = !measured.front().answers.empty(), has_text = measured.front().perplexity.has_value();
  std::vector<std::vector<std::string>> cells = {{"fault"}};
  if (has_task) cells[0].insert(cells[0].end(), {"accuracy", "95 % interval", "p (paired)"});
  if (has_text) cells[0].insert(cells[0].end(), {"perplexity", "added nats a token, 95 %"});
  for (const Json& row : rows) cells.push_back(table_row(row, has_task, has_text));
  const std::string text = table(cells);
  const std::size_t heading = text.find('\n');
  print(styled(Style::kHeading, text.substr(0, heading)) + text.substr(heading));
  if (globals.quiet) return;
  for (const lab::EvaluationRow& row : measured) {
    if (!row.proof) continue;
    print("\n" + styled(Style::kHeading, "proof of " + row.label) + "\n");
    for (const std::string& line : row.proof->log) print(line + "\n");
  }
}

std::string write_record(const EvaluationRecord& record, const Json& rows, const lab::LoadedModel& loaded,
                         const std::vector<lab::EvaluationRow>& measured, const Globals& globals) {
  record::Asked asked{record.name, record.recipe, record.seed};
  asked.recipe["model"] = loaded.path.string();
  for (const Json& row : rows) asked.plan.push_back(row["rules"]);
  record::RunDirectory directory = record::begin_run(record.out, asked, maker_of(globals, &loaded));
  for (const Json& event : answer_events(measured)) directory.events().append(event);
  directory.events().flush_step();
  record::Summary summary;
  summary.results = {{"kind", "eval"}, {"rows", rows}};
  directory.write_summary(summary);
  return directory.path().string();
}

}  // namespace

Json answer_events(const std::vector<lab::EvaluationRow>& rows) {
  auto events = Json::array();
  for (const lab::EvaluationRow& row : rows)
    for (const task::Answer& answer : row.answers)
      events.push_back({{"kind", "answer"},
                        {"row", row.label},
                        {"id", answer.id},
                        {"text", answer.text},
                        {"extracted", answer.extracted},
                        {"reward", answer.reward},
                        {"tokens", answer.tokens},
                        {"ended", answer.ended}});
  return events;
}

ExitCode run_and_show(lab::Evaluation& evaluation, const EvaluationRecord& record, const Globals& globals) {
  const lab::LoadedModel& loaded = evaluation.loaded();
  std::vector<lab::EvaluationRow> measured;
  on_interrupt_say(record.out.empty() ? "nothing is kept; the same command begins again"
                                      : "nothing is kept: a record is written when all rows are measured; the same "
                                        "command begins again");
  {
    Progress progress("evaluating", evaluation.answers(),
                      {.unit = "answer", .batch = evaluation.at_once(), .quiet = globals.quiet});
    measured = evaluation.run([&](const std::string& label, int64_t count) {
      progress.set_postfix(label);
      progress.advance(count);
    });
  }
  const Json rows = lab::evaluation_json(measured);
  std::string written;
  if (!record.out.empty()) written = write_record(record, rows, loaded, measured, globals);
  if (globals.json) {
    print_json({{"command", record.name},
                {"model", loaded.path.string()},
                {"seed", record.seed},
                {"rows", rows},
                {"record", written.empty() ? Json() : Json(written)}});
  } else {
    show(rows, measured, globals);
    if (!written.empty()) print(fmt::format("\nrecord: {}\n", written));
  }
  ExitCode code = ExitCode::kOk;
  for (const lab::EvaluationRow& row : measured) {
    if (!row.proof || row.proof->complaints.empty()) continue;
    code = ExitCode::kEvidence;
    if (!globals.json)
      print(styled(Style::kBad, "evidence missing: ") + row.label + ": " + joined_sentences(row.proof->complaints) +
            "\n");
  }
  return code;
}

ExitCode show_predictions(const lab::Evaluation& evaluation, const std::string& command, const Json& recipe,
                          const Globals& globals) {
  const Json plans = evaluation.predictions();
  if (globals.json) {
    print_json({{"command", command}, {"dry_run", true}, {"recipe", recipe}, {"predictions", plans}});
    return ExitCode::kOk;
  }
  std::vector<std::vector<std::string>> rows = {{"rule", "forward", "sites", "calls a forward"}};
  for (const Json& plan : plans)
    for (const auto& [kind, rules] : plan.items())
      for (const Json& rule : rules)
        rows.push_back({rule["rule"], kind, fmt::format("{}", rule["sites"].get<int64_t>()),
                        fmt::format("{}", rule["calls"].get<int64_t>())});
  print(styled(Style::kHeading, "matched sites") + "\n" + table(rows));
  if (!globals.quiet) print("\nNothing was run. Without --dry-run it runs.\n");
  return ExitCode::kOk;
}

}  // namespace faultline::cli
