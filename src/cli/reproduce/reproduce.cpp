// `faultline reproduce`: a published result, made again from its record and compared with it, bit for bit unless a
// tolerance is asked for. Another program or another model is another question, and is refused.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/json.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/reproduce/rerun.h"
#include "numeric/versions.h"
#include "record/comparison.h"
#include "record/environment.h"
#include "report/field.h"

namespace faultline::cli {
namespace {

namespace fs = std::filesystem;

struct ReproduceOptions {
  std::string record, out = "reproduced", tolerance = "0";
  bool anyway = false;
  RerunChoice choice;
  std::vector<std::string> commands;  // names of all of them
};

// Of no two runs the same. An experiment's record has names that its author chose: there only what is known to be a
// time is left out, in content_of.
const std::set<std::string> kTimes = {"times",   "seconds", "step_seconds",   "step_seconds_without_digests",
                                      "slow",    "made_by", "seconds_a_step", "noise_seconds_a_step",
                                      "overhead"};

// A folder of its own below --out: DIR/NAME, DIR/NAME-2, …
fs::path new_folder(const fs::path& out, const std::string& name) {
  std::error_code error;
  fs::create_directories(out, error);
  for (int attempt = 1; attempt < 100000; ++attempt) {
    const std::string safe = record::sanitized_run_name(name);
    const fs::path folder = fs::absolute(out) / (attempt == 1 ? safe : fmt::format("{}-{}", safe, attempt));
    if (fs::create_directory(folder, error)) return folder;
    if (error)
      throw UsageError(
          fmt::format("{}: cannot be created: {}; choose another --out", folder.string(), error.message()));
  }
  throw UsageError(fmt::format("{}: too many reproductions of {}; move some away", out.string(), name));
}

class FreshFolder {  // goes with its object, unless it is kept
 public:
  FreshFolder(const fs::path& out, const std::string& name) : path_(new_folder(out, name)) {}
  ~FreshFolder() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(path_, ignored);
  }
  FreshFolder(const FreshFolder&) = delete;
  FreshFolder& operator=(const FreshFolder&) = delete;
  const fs::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  fs::path path_;
  bool kept_ = false;
};

// The last line, or the last error where the program said one.
std::string last_words_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string last, error;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("error: ")) error = line;
    if (!line.empty()) last = line;
  }
  return (error.empty() ? last : error).substr(0, 500);
}

// Runs this program; its words go to files, and what it says of its progress also to stderr. The exit status.
int run_program(const std::vector<std::string>& arguments, const fs::path& folder, bool quiet) {
  std::vector<std::string> words = {"faultline"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const std::string output = (folder / "stdout.txt").string(), errors = (folder / "stderr.txt").string();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), kFlags, 0644);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors.c_str(), kFlags, 0644);
  pid_t child = -1;
  record::ChildEnvironment environment;
  const int failed = ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, pointers.data(), environment.get());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw RuntimeFailure(fmt::format("cannot start faultline: {}", std::strerror(failed)));
  std::streamoff shown = 0;
  const auto show_news = [&] {
    if (quiet) return;
    std::ifstream stream(errors);
    stream.seekg(shown);
    const std::string news{std::istreambuf_iterator<char>(stream), {}};
    fmt::print(stderr, "{}", news);
    shown += std::ssize(news);
  };
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    show_news();
  }
  show_news();
  if (ended < 0) throw RuntimeFailure(fmt::format("cannot wait for faultline: {}", std::strerror(errno)));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Sentences; empty where the record was made by this program with this model.
std::vector<std::string> what_changed(const report::LoadedRecord& record, const RerunChoice& choice) {
  std::vector<std::string> changed;
  const std::vector<Json> versions = versions_of(record, choice);
  const Json now = numeric::versions();
  if (versions.empty()) changed.emplace_back("the record does not say which version made it");
  for (const Json& then : versions)
    for (const auto& [key, value] : now.items())
      if (then.value(key, Json()) != value)
        changed.push_back(fmt::format("{}: it was made with {}, this is {}", key, then.value(key, Json("none")).dump(),
                                      value.dump()));
  const Json model = model_of(record, choice);
  const Json path = report::at(model, "path"), fingerprint = report::at(model, "fingerprint");
  if (!path.is_string() || !fingerprint.is_string()) {
    if (record.manifest || record.kind == "experiment")
      changed.emplace_back("the record does not say which model it used");
    return changed;
  }
  const std::string file = path.get<std::string>();
  std::error_code ignored;
  if (!fs::exists(file, ignored))
    throw UsageError(fmt::format("the record's model is not here: {}; say where it is with --model PATH", file));
  if (const std::string found = record::model_files_fingerprint(file); found != fingerprint.get<std::string>())
    changed.push_back(fmt::format("{}: the model has changed: its files' fingerprint was {}, is {}", file,
                                  fingerprint.get<std::string>(), found));
  return changed;
}

// Variables that may change a result and are not as they were: said, not refused.
std::vector<std::string> changed_environment(const report::LoadedRecord& record) {
  std::vector<std::string> notes;
  const Json then = environment_of(record), now = record::recorded_environment();
  record::RecordComparison differences;
  record::compare("environment", then, now, {}, differences);
  for (const record::ValueDifference& one : differences.differences)
    notes.push_back(fmt::format("{}: was {}, is {}", one.path, one.was, one.is));
  std::set<int64_t> threads;
  for (const Json& event : record.events)
    if (const Json& count = report::at(report::at(event, "outcome"), "threads"); count.is_number_integer())
      threads.insert(count.get<int64_t>());
  if (!threads.empty() && threads != std::set<int64_t>{at::get_num_threads()})
    notes.push_back(
        fmt::format("threads of a trial: were {}, are {}", fmt::join(threads, " or "), at::get_num_threads()));
  return notes;
}

report::LoadedRecord load_whole(const fs::path& path, const std::string& remedy) {
  report::LoadedRecord record = report::load_record(path);
  if (!record.missing.empty())
    throw UsageError(fmt::format("{}: {} {}", path.string(), record.missing.front(), remedy));
  return record;
}

report::LoadedRecord run_again(const Rerun& rerun, const fs::path& folder, bool quiet) {
  const int status = run_program(rerun.arguments, folder, quiet);
  const auto broken = [&] {
    return RuntimeFailure(
        fmt::format("the run exited with {} and left no record: {}", status, last_words_of(folder / "stderr.txt")));
  };
  fs::path result = rerun.result;
  if (rerun.below) {
    std::vector<fs::path> runs;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(rerun.result, ignored))
      if (!entry.path().filename().string().starts_with(".")) runs.push_back(entry.path());
    if (runs.size() != 1) throw broken();
    result = runs.front();
  }
  std::error_code ignored;
  if (!fs::exists(result, ignored)) throw broken();
  report::LoadedRecord record = report::load_record(result);
  if (!record.missing.empty())
    throw RuntimeFailure(fmt::format("the new record {} is not whole: {} ({})", result.string(), record.missing.front(),
                                     last_words_of(folder / "stderr.txt")));
  return record;
}

// What somebody else may have written is refused where it is not as this program writes it.
template <class Read>
void from_record(const std::string& record, const Read& read) {
  try {
    read();
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("{}: not a record as this program writes it: {}", record, error.what()));
  } catch (const RuntimeFailure& error) {
    throw UsageError(error.what());
  }
}

Json to_json(const record::RecordComparison& result) {
  Json differences = Json::array();
  for (const record::ValueDifference& one : result.differences)
    differences.push_back({{"path", one.path}, {"was", one.was}, {"is", one.is}});
  return {{"equal", result.equal()},           {"values", result.values},   {"different", result.different},
          {"within_tolerance", result.within}, {"largest", result.largest}, {"differences", differences}};
}

// "of 1 trial, without the table", where the record is an experiment.
std::string extent_of(const Rerun& rerun) {
  if (rerun.trials.empty()) return "";
  return fmt::format(" of {} trial{}{} the table", rerun.trials.size(), rerun.trials.size() == 1 ? "" : "s",
                     rerun.whole ? " and" : ", without");
}

void show(const record::RecordComparison& result, const Rerun& rerun, double tolerance) {
  if (result.equal()) {
    const std::string how = result.within == 0
                                ? "bit for bit"
                                : fmt::format("{} of them within {:g} (largest relative difference {:.3g})",
                                              result.within, tolerance, result.largest);
    print(styled(Style::kGood, "reproduced: ") +
          fmt::format("{} values{}, {}\n", result.values, extent_of(rerun), how));
    return;
  }
  print(styled(Style::kBad, "differs: ") + fmt::format("{} of {} values{}; largest relative difference {:.3g}\n",
                                                       result.different, result.values, extent_of(rerun),
                                                       result.largest));
  std::vector<std::vector<std::string>> rows = {{"where", "was", "is"}};
  for (const record::ValueDifference& one : result.differences) rows.push_back({one.path, one.was, one.is});
  print(table(rows));
  if (result.different > result.differences.size())
    print(fmt::format("and {} more\n", result.different - result.differences.size()));
}

ExitCode reproduce(const ReproduceOptions& options, const Globals& globals) {
  const double tolerance = parse_number("--tolerance", options.tolerance, 0, 1);
  const report::LoadedRecord record = load_whole(options.record, "Only a whole record can be reproduced.");
  FreshFolder folder(options.out, record.name);
  Rerun rerun;
  Json was;
  std::vector<std::string> changed, notes;
  from_record(options.record, [&] {
    rerun = plan_rerun(record, folder.path(), options.commands, options.choice);
    changed = what_changed(record, options.choice);
    was = content_of(record, rerun);
    notes = changed_environment(record);
  });
  if (!changed.empty() && !options.anyway)
    throw UsageError(fmt::format("{}: {}; --anyway runs it all the same", options.record, joined(changed, "; ")));
  folder.keep();
  const report::LoadedRecord again = run_again(rerun, folder.path(), globals.quiet);
  record::RecordComparison result;
  const std::set<std::string> ignored = record.kind == "experiment" ? std::set<std::string>{} : kTimes;
  record::compare("", was, content_of(again, rerun), {tolerance, ignored}, result);
  if (globals.json) {
    Json json = {{"command", "reproduce"},       {"record", options.record}, {"again", again.path.string()},
                 {"arguments", rerun.arguments}, {"changed", changed},       {"environment", notes}};
    if (!rerun.trials.empty()) json["trials"] = rerun.trials, json["table"] = rerun.whole;
    json.update(to_json(result));
    print_json(json);
  } else {
    for (const std::string& sentence : changed) print("changed: " + sentence + "\n");
    if (!globals.quiet)
      for (const std::string& sentence : notes) print("note: " + sentence + "\n");
    show(result, rerun, tolerance);
    print(fmt::format("again: {}\n", again.path.string()));
  }
  return result.equal() ? ExitCode::kOk : ExitCode::kFound;
}

}  // namespace

void add_reproduce(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("reproduce", "make a published result again from its record, and compare");
  auto options = std::make_shared<ReproduceOptions>();
  command
      ->add_option("record", options->record,
                   "a run directory (eval, run, train), the JSON file of a race, the folder of a triage or of an "
                   "experiment, or the store of a campaign of diagnoses")
      ->required()
      ->type_name("");
  command->add_option("--arms", options->choice.arms, "of an experiment: only these arms, as in e5,e5a")
      ->group("Trials")
      ->type_name("LIST");
  command->add_option("--seeds", options->choice.seeds, "of an experiment: only these seed numbers, as in 0-5,9")
      ->group("Trials")
      ->type_name("LIST");
  command->add_option("--out", options->out, "the new record goes into a folder of its own below this one")
      ->group("Output")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_option("--model", options->choice.model, "where the record's model is now; default: where it was")
      ->group("Comparison")
      ->type_name("PATH");
  command->add_option("--tolerance", options->tolerance, "numbers may differ by this share, 0 to 1; 0: not by one bit")
      ->group("Comparison")
      ->type_name("T")
      ->capture_default_str();
  command->add_flag("--anyway", options->anyway, "also where the program or the model is another one")
      ->group("Comparison");
  command->footer(
      "Examples:\n  faultline reproduce runs/eval-20260131T235959Z-1f2e3d4c\n"
      "  faultline reproduce race.json --out /tmp/again\n"
      "  faultline reproduce runs/noisy-ops-default-1f2e3d4c --arms e5 --seeds 0\n"
      "  faultline reproduce runs/default-20260131T235959Z-1f2e3d4c --anyway --tolerance 1e-3\n\n"
      "Times are left out of the comparison. Exit codes: 0 equal, 1 something differs, 2 it could not be run,\n"
      "64 usage, or another program or model. Global options: see `faultline --help`.");
  command->callback([&app, &run, &globals, options] {
    for (const CLI::App* one : app.get_subcommands({})) options->commands.push_back(one->get_name());
    run = [&globals, options] { return reproduce(*options, globals); };
  });
}

}  // namespace faultline::cli
