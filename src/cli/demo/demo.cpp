// `faultline demo`: the whole lab in a few minutes on the default model. Census, a healthy verdict, a fault that the
// seed chooses, what it does to text and numbers, who is to blame, a short hardening, a corrupted collective; then the
// page of it all. Everything lies in one run directory, and an act whose evidence is missing ends the demo (exit 3).
#include "cli/demo/demo.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>

#include "base/files/file.h"
#include "base/json.h"
#include "cli/interruption.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "recipe/recipe.h"
#include "record/environment.h"
#include "record/run_directory.h"
#include "report/record.h"

namespace faultline::cli {
namespace {

struct DemoOptions : ModelOptions {
  std::string output = "runs";
  bool quick = false;
  double minutes = 3;
};

double seconds_since(const std::chrono::steady_clock::time_point& start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

record::RunDirectory open_directory(const DemoOptions& options, const Globals& globals, const lab::LoadedModel& loaded,
                                    const PlantedFault& fault) {
  const Json recipe = {{"command", record::recorded_words(globals.arguments)},
                       {"model", loaded.path.string()},
                       {"dtype", options.dtype},
                       {"quick", options.quick},
                       {"minutes", options.minutes},
                       {"fault", fault.text}};
  const Json plan = to_json(fault.recipe(globals.seed()).at("faults"));
  return record::begin_run(options.output, {"demo", recipe, globals.seed(), plan}, maker_of(globals, &loaded));
}

// The act that trains takes so many times what the acts before it take, which are made of the same forwards: 8 to 13
// times on the machines without a GPU whose tours are in README and docs/results/build.md.
constexpr double kTrainingOverActsBefore = 10;
constexpr double kLastAct = 5;  // seconds, and the page

std::string minutes_words(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} seconds", std::max(10.0, 10 * std::round(seconds / 10)));
  return fmt::format("{:.0f} minutes", std::round(seconds / 60));
}

std::string training_words(double whole, const Lesson& lesson) {
  std::string text = fmt::format(
      "The next act trains: about {} on this machine, judged by the acts before. `faultline demo --quick`\nleaves it "
      "out; Ctrl-C keeps what is done.\n",
      minutes_words(lesson.share() * whole));
  if (lesson.taught < Lesson{}.taught)
    text += fmt::format(
        "It does less than it would in {}: {} SFT steps, {} GRPO steps, {} problems (--minutes gives it more).\n",
        minutes_words(whole), lesson.taught, lesson.reinforced, lesson.problems);
  return text;
}

class Tour {
 public:
  Tour(record::RunDirectory& directory, const Globals& globals) : directory_(directory), globals_(globals) {}

  // Heading, act, its lines; kept in the record as soon as it is over.
  Act play(const char* title, const std::function<Act()>& act) {
    const bool show = !globals_.json;
    if (show) print_now(styled(Style::kHeading, fmt::format("{}. {}", ++number_, title)) + "\n");
    const auto start = std::chrono::steady_clock::now();
    Act done = act();
    const double seconds = seconds_since(start);
    if (show) {
      std::string text;
      for (const std::string& line : done.lines) text += "   " + line + "\n";
      print_now(text + fmt::format("   {:.1f} s\n\n", seconds));
    }
    if (done.record.contains("answers")) {
      for (const Json& answer : done.record["answers"]) directory_.events().append(answer);
      done.record.erase("answers");
    }
    directory_.events().append(
        {{"kind", "act"}, {"act", done.name}, {"seconds", seconds}, {"passed", done.as_it_should}});
    directory_.events().flush_step();
    acts_.push_back({{"act", done.name},
                     {"title", title},
                     {"seconds", seconds},
                     {"passed", done.as_it_should},
                     {"record", done.record}});
    passed_ &= done.as_it_should;
    return done;
  }

  double seconds() const {
    double sum = 0;
    for (const Json& act : acts_) sum += act["seconds"].get<double>();
    return sum;
  }
  bool passed() const { return passed_; }
  const Json& acts() const { return acts_; }

 private:
  record::RunDirectory& directory_;
  const Globals& globals_;
  int number_ = 0;
  bool passed_ = true;
  Json acts_ = Json::array();
};

std::filesystem::path write_page(const record::RunDirectory& directory) {
  const std::filesystem::path page = directory.path() / "report.html";
  write_file_atomically(page, report::page({report::load_record(directory.path())}));
  return page;
}

ExitCode demo(const DemoOptions& options, const Globals& globals) {
  if (!(options.minutes >= 0.1))
    throw UsageError(fmt::format("--minutes {}: wanted 0.1 or more; --quick leaves the training out", options.minutes));
  const auto start = std::chrono::steady_clock::now();
  lab::LoadedModel loaded = open_model(options, globals);
  const uint64_t seed = globals.seed();
  const PlantedFault fault = choose_fault(seed, loaded.model->config().layers);
  record::RunDirectory directory = open_directory(options, globals, loaded, fault);
  Stage stage{.loaded = loaded,
              .seed = seed,
              .quick = options.quick,
              .folder = directory.path(),
              .maker = maker_of(globals, &loaded)};
  stage.progress = [&](const std::string& line) {
    if (!globals.quiet && !globals.json) fmt::print(stderr, "   … {}\n", line);
  };
  on_interrupt_say(
      fmt::format("the acts that ended are kept in {0}; `faultline report {0}` makes a page of them. The "
                  "same command begins a new tour, --quick a short one",
                  directory.path().string()));
  // The acts, each recorded as it ends.
  Tour tour(directory, globals);
  tour.play("What runs where", [&] { return census_act(stage); });
  tour.play("Is this model healthy?", [&] { return healthy_act(stage); });
  tour.play("A fault is planted", [&] { return damage_act(stage, fault); });
  const Act found = tour.play("Who is to blame?", [&] { return diagnosis_act(stage, fault); });
  if (!options.quick) {
    const Json& accused = found.record["accused_layer"];
    const double whole = kTrainingOverActsBefore * tour.seconds();
    const Lesson lesson = lesson_for(whole, 60 * options.minutes - tour.seconds() - kLastAct);
    if (!globals.json && !globals.quiet) print_now(training_words(whole, lesson));
    tour.play("Can training harden it?", [&] {
      return hardening_act(stage, fault, accused.is_null() ? std::nullopt : std::optional(accused.get<int64_t>()),
                           lesson);
    });
  }
  tour.play("Was it the network?", [&] { return race_act(stage); });
  // The record, its page and the last line.
  record::Summary summary;
  summary.results = {{"kind", "demo"}, {"quick", options.quick}, {"passed", tour.passed()}, {"acts", tour.acts()}};
  directory.write_summary(summary);
  const std::filesystem::path page = write_page(directory);
  if (globals.json) {
    print_json({{"command", "demo"},
                {"seed", seed},
                {"fault", fault.text},
                {"passed", tour.passed()},
                {"acts", tour.acts()},
                {"seconds", seconds_since(start)},
                {"record", directory.path().string()},
                {"page", page.string()}});
  } else {
    if (!globals.quiet)
      print(fmt::format("{:.0f} s. Another fault: faultline demo --seed {}{}. On your own model: --model FOLDER.\n",
                        seconds_since(start), seed + 1, options.quick ? " --quick" : ""));
    print(page.string() + "\n");
  }
  return tour.passed() ? ExitCode::kOk : ExitCode::kFound;
}

}  // namespace

void add_demo(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("demo", "the whole lab: plant a fault, see it, find it, harden, report");
  auto options = std::make_shared<DemoOptions>();
  add_model_options(*command, *options);
  command->add_flag("--quick", options->quick, "leave out the hardening run")->group("Demo");
  command
      ->add_option("--minutes", options->minutes,
                   "the tour fits itself into so many, 0.1 or more: the act that trains does less")
      ->group("Demo")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--output,--out", options->output, "the run directory goes below this folder")
      ->group("Demo")
      ->type_name("DIR")
      ->capture_default_str();
  command->footer(
      "Examples:\n  faultline demo --quick\n  faultline demo --seed 7 --output runs\n\n"
      "The seed chooses the planted fault and its layer. Exit codes: 0 everything went as it should, 1 the diagnosis "
      "or "
      "the\nrace missed something, 3 evidence missing. Global options (--seed, --device, --json, …): see `faultline "
      "--help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return demo(*options, globals); }; });
}

}  // namespace faultline::cli
