#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/files/file.h"
#include "record/campaign_store.h"
#include "record/document.h"
#include "report/field.h"
#include "report/record.h"

namespace faultline::report {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLargestFile = std::uintmax_t{1} << 28;

bool there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_store(const fs::path& path) {  // whatever it is called
  std::array<char, 16> start = {};
  std::ifstream(path, std::ios::binary).read(start.data(), start.size());
  return std::string_view(start.data(), start.size()) == std::string_view("SQLite format 3\0", 16);
}

// Runs `read`; its failure becomes a sentence.
template <class Read>
void attempt(LoadedRecord& record, const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    record.missing.emplace_back(error.what());
  } catch (const Json::exception& error) {
    record.missing.push_back(fmt::format("{}: {}", record.path.string(), error.what()));
  }
}

Json read_json_file(const fs::path& path) {
  std::error_code ignored;
  if (fs::file_size(path, ignored) > kLargestFile)
    throw RuntimeFailure(
        fmt::format("{}: larger than {} MiB, more than any result of ours", path.string(), kLargestFile >> 20));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  if (!file) throw RuntimeFailure(fmt::format("{}: cannot be read", path.string()));
  return parse_json_text(bytes.str(), path.string());
}

void read_events_of(LoadedRecord& record) {
  const fs::path path = record.path / "events.jsonl";
  if (!there(path)) {
    record.missing.emplace_back("There is no events.jsonl: what happened step by step is unknown.");
    return;
  }
  attempt(record, [&] {
    const record::EventExtent extent =
        record::scan_events(path, [&](Json&& event) { record.events.push_back(std::move(event)); });
    if (extent.torn_bytes > 0)
      record.missing.push_back(
          fmt::format("The last line of events.jsonl is torn ({} bytes without an end): the process was stopped while "
                      "it wrote. The line was never reported done and is left out.",
                      extent.torn_bytes));
  });
}

record::Summary summary_of(const Json& document) {
  record::Summary summary;
  const auto step = [&](const char* key) { return static_cast<int64_t>(number(document, key).value_or(0)); };
  summary.step_reached = step("step_reached");
  summary.steps_planned = step("steps_planned");
  if (number(document, "step_evaluated")) summary.step_evaluated = step("step_evaluated");
  summary.results = at(document, "results");
  return summary;
}

void judge_summary(LoadedRecord& record) {
  if (!record.summary) {
    if (!there(record.path / "summary.json"))
      record.missing.emplace_back("There is no summary.json: the run is still going, or it died before its end.");
    return;
  }
  const record::Summary& summary = *record.summary;
  if (summary.step_reached < summary.steps_planned)
    record.missing.push_back(
        fmt::format("The run ended after step {} of {}.", summary.step_reached, summary.steps_planned));
  if (summary.step_evaluated && *summary.step_evaluated != summary.step_reached)
    record.missing.push_back(
        fmt::format("The last evaluation was at step {}, not at the last step, {}: its numbers "
                    "are not those of the final model.",
                    *summary.step_evaluated, summary.step_reached));
}

void read_run_directory(LoadedRecord& record) {
  attempt(record, [&] { record.manifest = record::read_manifest(record.path / "manifest.json"); });
  if (there(record.path / "ledger.json"))
    attempt(record, [&] {
      record.ledger = record::read_document(record.path / "ledger.json", "ledger").value("ledger", Json());
    });
  if (there(record.path / "summary.json"))
    attempt(record,
            [&] { record.summary = summary_of(record::read_document(record.path / "summary.json", "summary")); });
  read_events_of(record);
  if (!record.manifest && !record.summary && record.ledger.is_null() && record.events.empty())
    throw UsageError(fmt::format("{}: no record: nothing in it can be read. {}", record.path.string(),
                                 record.missing.empty() ? "" : record.missing.front()));
  judge_summary(record);
  record.kind = string(record.results(), "kind");
  const bool trained = std::any_of(record.events.begin(), record.events.end(), [](const Json& event) {
    return at(event, "metrics").is_object() && number(event, "step");
  });
  if (record.kind.empty() && trained) record.kind = "train";
}

void read_trials(LoadedRecord& record, const fs::path& file) {
  if (!there(file)) {
    record.missing.push_back(fmt::format("There is no {}: the single trials are unknown.", file.filename().string()));
    return;
  }
  attempt(record, [&] {
    record::CampaignStore(file, record::StoreUse::kRead).for_each([&](record::Trial&& trial) {
      record.events.push_back({{"kind", "trial"},
                               {"cell", trial.key.cell},
                               {"index", trial.key.index},
                               {"seed", trial.seed},
                               {"status", record::to_string(trial.status)},
                               {"seconds", trial.finished - trial.started},
                               {"outcome", std::move(trial.outcome)}});
    });
  });
}

void read_file(LoadedRecord& record) {
  const std::string file = record.path.string();
  constexpr const char* kWanted =
      "a page is made from a run directory, or from the JSON file that race, diagnose or scan wrote with --out";
  if (const std::string format = tensor_file_format(record.path); !format.empty())
    throw UsageError(
        fmt::format("{0}: this is a model or its tensors ({1}), not the record of a run; {2}; `faultline scan --model "
                    "{0} --out scan.json` makes one of a model",
                    file, format, kWanted));
  try {
    record.document = read_json_file(record.path);
  } catch (const RuntimeFailure& failure) {
    throw UsageError(fmt::format("{}; {}", failure.what(), kWanted));
  }
  if (!record.document.is_object()) throw UsageError(fmt::format("{}: no record: {}", file, kWanted));
  record.kind = string(record.document, "kind");
  if (record.kind.empty() && record.document.contains("verdict") && record.document.contains("ranks"))
    record.kind = "race";
  if (record.kind.empty() && record.document.contains("verdict") && record.document.contains("candidates"))
    record.kind = "diagnose";
}

}  // namespace

const Json& LoadedRecord::results() const {
  static const Json nothing;
  return summary ? summary->results : nothing;
}

LoadedRecord load_record(const fs::path& path) {
  LoadedRecord record;
  record.path = path;
  record.name = (path / ".").lexically_normal().parent_path().filename().string();
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) && (path.extension() == ".sqlite" || is_store(path))) {
    record.kind = "campaign";
    read_trials(record, path);
  } else if (fs::is_regular_file(path, ignored)) {
    read_file(record);
  } else if (!fs::is_directory(path, ignored)) {
    throw UsageError(fmt::format("{}: there is no such folder or file", path.string()));
  } else if (there(path / "manifest.json")) {
    read_run_directory(record);
  } else if (there(path / "analysis.json")) {
    record.kind = "experiment";
    attempt(record, [&] { record.document = record::read_document(path / "analysis.json", "experiment"); });
    read_trials(record, path / "campaign.sqlite");
  } else if (there(path / "matrix.json")) {
    record.kind = "triage";
    attempt(record, [&] { record.document = read_json_file(path / "matrix.json"); });
    read_trials(record, path / "campaign.sqlite");
  } else if (there(path / "campaign.sqlite")) {
    record.kind = "campaign";
    read_trials(record, path / "campaign.sqlite");
  } else {
    throw UsageError(fmt::format(
        "{}: no record: wanted manifest.json (a run), analysis.json (an experiment), matrix.json (a triage) or "
        "campaign.sqlite in the folder; runs lie below the folder that --out named",
        path.string()));
  }
  return record;
}

}  // namespace faultline::report
