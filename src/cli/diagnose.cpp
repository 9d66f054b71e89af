// `faultline diagnose`: is this model on this machine healthy, and if not, which layer, which operator, what kind. With
// --fault the machine is broken first, and the ledger's count of changed elements is shown beside the verdict.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>

#include "base/json.h"
#include "cli/diagnose_campaign.h"
#include "cli/interruption.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "diagnose/examination.h"
#include "lab/injection.h"
#include "plugin/recipe_sections.h"

namespace faultline::cli {
namespace {

constexpr const char* kPrompt =
    "A train leaves the station at nine and covers sixty miles an hour. How far has it gone at noon, and how long "
    "would a car at forty miles an hour need for the same way?";

struct DiagnoseOptions : ModelOptions {
  std::string method = "self", prompt = kPrompt, tokens = "24", passes = "1", rarity, out, recipe;
  bool explain = false, schema = false;
  CampaignOptions campaign;
};

at::Tensor prompt_of(const DiagnoseOptions& options, const lab::LoadedModel& loaded) {
  std::vector<int64_t> tokens = loaded.tokenizer.encode(options.prompt);
  if (tokens.empty()) throw UsageError("--prompt: there is no token in it");
  const auto limit = static_cast<std::size_t>(parse_count("--tokens", options.tokens, 1, 4096));
  if (tokens.size() > limit) tokens.resize(limit);
  return at::tensor(tokens, at::kLong).unsqueeze(0);
}

// The residual by the size of what was expected: a dead zone is wrong at the small end, a saturation at the large one,
// a gain has one ratio everywhere, an offset one residual.
std::string drawn(const diagnose::Evidence& evidence) {
  std::string text =
      "      |expected|/largest  elements   wrong                        observed/expected      residual\n";
  for (const diagnose::Evidence::Bin& bin : evidence.picture) {
    const double share = static_cast<double>(bin.wrong) / static_cast<double>(bin.elements);
    const std::string bar(static_cast<std::size_t>(std::lround(20 * share)), '#');
    const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{:.4g}", value) : "-"; };
    text += fmt::format("      {:>7.3g} to {:<7.3g} {:>8} {:>7.2f} % {:<20} {:>15} {:>15}\n", bin.from, bin.to,
                        bin.elements, 100 * share, bar, number(bin.ratio), number(bin.residual));
  }
  return text;
}

// So many passes that a fault which acts in this share of the calls is seen with 95 %.
int64_t passes_of(const DiagnoseOptions& options) {
  const auto passes = static_cast<int64_t>(parse_count("--passes", options.passes, 1, 100000));
  if (options.rarity.empty()) return passes;
  const double rarity = parse_number("--rarity", options.rarity, 1e-4, 1);
  return std::max(passes, rarity == 1 ? 1 : static_cast<int64_t>(std::ceil(std::log(0.05) / std::log1p(-rarity))));
}

std::string explained(const diagnose::Candidate& candidate) {
  std::string text;
  for (const diagnose::Evidence& evidence : candidate.evidence) {
    text +=
        fmt::format("    {}: {} of {} elements wrong{}\n", evidence.relation, evidence.violations, evidence.elements,
                    evidence.pass > 0 ? fmt::format(", first in pass {}", evidence.pass + 1) : "");
    for (const diagnose::Evidence::Sample& sample : evidence.samples)
      text += fmt::format("      row {:>3} column {:>5}  expected {:>13.6g}  observed {:>13.6g}\n", sample.row,
                          sample.column, sample.expected, sample.observed);
    text += drawn(evidence);
  }
  return text;
}

void show(const diagnose::Diagnosis& diagnosis, bool explain) {
  const bool fine = diagnose::verdict_of(diagnosis).starts_with("healthy");
  print(styled(Style::kHeading, diagnosis.method) + ": " +
        styled(fine ? Style::kGood : Style::kBad, diagnose::verdict_words(diagnosis)) + "  (" +
        diagnose::cost_words(diagnosis) + ")\n");
  std::size_t shown = 0;
  for (const diagnose::Candidate& candidate : diagnosis.candidates) {
    if (++shown > diagnose::kMostShown && !explain) {
      print(fmt::format("  and {} more\n", diagnosis.candidates.size() - diagnose::kMostShown));
      break;
    }
    print("  " + diagnose::candidate_words(candidate) + "\n");
    if (explain) print(explained(candidate));
  }
  for (const std::string& sentence : diagnosis.not_tested) print("  not tested: " + sentence + "\n");
  if (explain)
    for (const std::string& sentence : diagnosis.not_excluded) print("  not excluded: " + sentence + "\n");
}

void show(const diagnose::Planted& planted) {
  for (const diagnose::Planted::Rule& rule : planted.rules)
    print(fmt::format("planted: {}at the {} of {}: {} elements changed in {} calls\n",
                      planted.rules.size() > 1 ? rule.name + " " : "", rule.surface, rule.place, rule.changed,
                      rule.calls));
}

std::vector<std::string> methods_of(const DiagnoseOptions& options) {
  if (options.method == "all") return {"classic", "self", "shadow"};
  return {options.method == "srdd" ? "classic" : options.method};
}

// What breaks the machine: the rules of --fault, or a recipe's; nothing where there are none.
std::optional<recipe::PlanSpec> planted_by(const DiagnoseOptions& options, DiagnoseOptions& effective,
                                           const Globals& globals) {
  const std::vector<numeric::Rule> rules = read_faults(options.faults);
  if (options.recipe.empty())
    return rules.empty() ? std::nullopt
                         : std::optional(recipe::read_plan_spec(recipe::recipe_of_rules(rules, globals.seed())));
  if (!rules.empty()) throw UsageError("--recipe and --fault both say what breaks the machine; give one of them");
  const Node recipe = recipe::load_recipe(options.recipe, {});
  if (options.model == "default") effective.model = recipe.at("model").as_string();
  if (recipe.at("faults").items().empty()) return std::nullopt;
  return recipe::read_plan_spec(recipe);
}

ExitCode diagnose(const DiagnoseOptions& options, const Globals& globals) {
  // Other forms of the command.
  if (options.schema) {
    print_json(diagnose::diagnosis_schema());
    return ExitCode::kOk;
  }
  if (options.campaign.worker) return work_for_campaign();
  if (!options.campaign.summarise.empty())
    return summarise_campaign(options.campaign.summarise, options.campaign, globals);
  if (!options.campaign.preset.empty())
    return run_diagnosis_campaign(options, options.campaign, methods_of(options), globals);
  // The model, with the planted fault where one was asked for.
  on_interrupt_say("nothing is kept; the same command begins again");
  DiagnoseOptions effective = options;
  std::optional<recipe::PlanSpec> planted_plan = planted_by(options, effective, globals);
  if (planted_plan) refuse_invisible(planted_plan->rules, effective);
  lab::LoadedModel loaded = open_model(effective, globals);
  diagnose::Examination examination;
  examination.tokens = prompt_of(options, loaded);
  examination.seed = globals.seed();
  examination.passes = passes_of(options);
  examination.whole_forwards = options.method == "srdd";  // as it was published
  std::unique_ptr<lab::Injection> injection;
  if (planted_plan)
    injection = std::make_unique<lab::Injection>(std::move(*planted_plan), *loaded.model, site::Phase::kDiagnose, 1);
  diagnose::Examiner examiner(*loaded.model, at::kCPU, globals.seed(), /*keep=*/false);
  // Each method examines it by itself.
  Json verdicts = Json::array();
  bool found = false, untested = false, proven = true;
  const std::vector<std::string> methods = methods_of(options);
  if (injection) injection->arm();
  for (const std::string& method : methods) {
    examination.method = method;
    const diagnose::Diagnosis diagnosis = examiner.run(examination);
    if (!globals.json) show(diagnosis, options.explain);
    // In a list of methods classic is there to be compared, not believed: it has no error rate.
    if (method != "classic" || methods.size() == 1) found |= diagnosis.fault_found();
    untested |= diagnosis.relations == 0 || diagnosis.broken_off;  // also where a fault was found before
    verdicts.push_back(diagnose::to_json(diagnosis));
  }
  // The proof of the planted fault decides whether the verdicts may be believed.
  Json json = {{"command", "diagnose"},    {"model", loaded.path.string()},        {"seed", globals.seed()},
               {"faults", options.faults}, {"tokens", examination.tokens.numel()}, {"verdicts", verdicts}};
  ExitCode code = found ? ExitCode::kFound : untested ? ExitCode::kEvidence : ExitCode::kOk;
  if (injection) {
    const lab::Injection::Proof proof = injection->finish();
    const diagnose::Planted planted = diagnose::planted_by(injection->plan());
    json["planted"] = diagnose::to_json(planted);
    json["evidence"] = proof.report;
    json["complaints"] = to_json(proof.complaints);
    if (!globals.json) show(planted);
    proven = proof.complaints.empty();
    if (!proven) {  // whatever was found: nobody knows whether it is the planted fault
      code = ExitCode::kEvidence;
      if (!globals.json) print(styled(Style::kBad, "evidence missing: ") + joined_sentences(proof.complaints) + "\n");
    }
  }
  // What was proven is kept.
  if (!options.out.empty() && proven) {
    Json kept = verdicts.back();
    kept["verdicts"] = verdicts;
    for (const char* key : {"planted", "evidence"})
      if (json.contains(key)) kept[key] = json[key];
    record::write_result(options.out, kept, maker_of(globals, &loaded));
  }
  if (globals.json) print_json(json);
  return code;
}

}  // namespace

void add_diagnose(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("diagnose", "healthy, or which layer and operator is broken, and how");
  auto options = std::make_shared<DiagnoseOptions>();
  add_model_options(*command, *options);
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    return command->add_option(name, value, text)->group("Diagnosis")->type_name(type)->capture_default_str();
  };
  offer(option("--method", options->method,
               "how it is examined, explained below: self, shadow, classic, srdd, or all but srdd", "NAME"),
        {"classic", "self", "shadow", "all", "srdd"});
  command->add_option("--prompt", options->prompt, "a text to run")->group("Diagnosis")->type_name("TEXT");
  option("--tokens", options->tokens, "at most so many of the prompt, 1 to 4096", "N");
  option("--passes", options->passes, "repeat until a fault is caught, at most so often, 1 to 100000", "N");
  command
      ->add_option("--rarity", options->rarity,
                   "as many passes as find a fault that acts in this share of the calls (0.0001 to 1) with 95 %")
      ->group("Diagnosis")
      ->type_name("P");
  command->add_flag("--explain", options->explain, "show what convinced it")->group("Diagnosis");
  add_fault_option(*command, *options, "break the machine first; may be repeated");
  command->add_option("--recipe", options->recipe, "break it as this recipe says, and take its model")
      ->group("Faults")
      ->type_name("FILE");
  command
      ->add_option("--out", options->out,
                   "write the verdicts here, that of the last method first, if --fault is proven")
      ->group("Output")
      ->type_name("FILE");
  command->add_flag("--schema", options->schema, "the JSON Schema of a verdict")->group("Output");
  add_campaign_options(*command, options->campaign);
  command->footer(
      std::string("Examples:\n  faultline diagnose\n  faultline diagnose --method all --fault 'gain(strength=0.01) @ "
                  "module=layer_output,layer=7'\n  faultline diagnose --passes 64 --explain\n\n"
                  "--method:\n"
                  "  self     asks the machine for sums whose answer is known: no other machine is needed\n"
                  "  shadow   computes each operator of a forward again in fp64 on the CPU, and compares\n"
                  "  classic  compares the layers with each other, as SRDD does; it may accuse a healthy layer\n"
                  "  srdd     classic with 11 forwards per layer, as published\n\n"
                  "Words of a verdict:\n"
                  "  [exact]              a relation without any tolerance was broken\n"
                  "  [bound]              an error is larger than rounding can make it\n"
                  "  [statistical]        a layer stands out among the others: may be chance\n"
                  "  forward-equivalents  the arithmetic it took, in forwards of the prompt\n"
                  "  unexplained          wrong values that no known kind of fault makes; where it is\n"
                  "                       repeatable, the fault may be in the input of what is named\n\n") +
      where_help() +
      "Exit codes: 0 healthy, 1 a fault was found, 3 nothing could be tested, or the evidence of --fault is missing.\n"
      "Global options: see `faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return diagnose(*options, globals); }; });
}

}  // namespace faultline::cli
