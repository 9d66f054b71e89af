// The acts of the demo that examine the model: what runs where, is it healthy, what does a fault do to it, who is to
// blame.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <fstream>
#include <map>

#include "base/files/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/demo/demo.h"
#include "cli/evaluation_output.h"
#include "cli/output.h"
#include "diagnose/examination.h"
#include "lab/evaluation.h"
#include "tap/operators.h"

namespace faultline::cli {
namespace {

constexpr const char* kQuestion = "What is the capital of France, and what is it known for?";
constexpr int64_t kGeneratedTokens = 40;
constexpr int64_t kWindow = 64;  // tokens of a window of the text
constexpr int64_t kProbedTokens = 24;
constexpr int64_t kAdditions = 48;

// ---- census

struct Sums {
  int64_t calls = 0;
  double flops = 0;
};

std::map<std::string, Sums> by_family(const tap::Census& census) {
  std::map<std::string, Sums> sums;
  for (const tap::CensusEntry& entry : census) {
    const std::string_view family = tap::family_of(tap::base_name(entry.name));
    Sums& sum = sums[family.empty() ? "of no family" : std::string(family)];
    sum.calls += entry.calls, sum.flops += entry.flops;
  }
  return sums;
}

// ---- damage

struct Generated {
  std::string text;
  std::vector<int64_t> tokens;
};

Generated generate_text(const Stage& stage) {
  model::Request request;
  request.prompt = task::prompt_tokens(stage.loaded.tokenizer, kQuestion);
  request.max_new_tokens = kGeneratedTokens;
  request.key = stage.seed;
  request.sampling = {.temperature = 0};
  model::GenerateOptions options;
  options.slots = 1;
  options.end_tokens = task::all_end_tokens(*stage.loaded.model, stage.loaded.tokenizer);
  model::Generator generator(*stage.loaded.model, options);
  const model::Completion completion = generator.run({request}).front();
  return {task::completion_text(stage.loaded.tokenizer, completion.tokens), completion.tokens};
}

Json speech_record(const Stage& stage, const PlantedFault& fault) {
  lab::Injection injection(recipe::read_plan_spec(fault.recipe(stage.seed)), *stage.loaded.model, site::Phase::kRollout,
                           1);
  injection.self_check();
  const Generated clean = generate_text(stage);
  injection.arm();
  const Generated broken = generate_text(stage);
  const lab::Injection::Proof proof = injection.finish();
  if (!proof.complaints.empty()) throw EvidenceError("demo, text: ", proof.complaints);
  const auto parted =
      std::mismatch(clean.tokens.begin(), clean.tokens.end(), broken.tokens.begin(), broken.tokens.end());
  return {{"question", kQuestion},
          {"clean", clean.text},
          {"broken", broken.text},
          {"same", clean.tokens == broken.tokens},
          {"parted_at", parted.first - clean.tokens.begin() + 1},
          {"evidence", proof.report}};
}

// What perplexity is measured on: the beginning of the test questions that ship with the project.
std::filesystem::path write_text(const Stage& stage, int64_t questions) {
  std::string text;
  const std::vector<task::Problem> problems = task::gsm8k("test");
  for (int64_t i = 0; i < std::min<int64_t>(questions, std::ssize(problems)); ++i) {
    const std::string& question = problems[static_cast<std::size_t>(i)].question;
    text += question.substr(0, question.size() - std::min(question.size(), task::kPromptSuffix.size())) + "\n";
  }
  const std::filesystem::path path = stage.folder / "text.txt";
  write_file_atomically(path, text);
  return path;
}

lab::EvaluationSpec evaluation_of(const Stage& stage) {
  lab::EvaluationSpec spec;
  spec.task.name = "addition";
  spec.task.arithmetic.seed = stage.seed;
  spec.task.shots = 2;
  spec.limit = kAdditions;
  spec.generation.max_new_tokens = 4;  // " 13" and the end of the line
  spec.generation.slots = 32;
  spec.generation.seed = stage.seed;
  spec.text = write_text(stage, stage.quick ? 8 : 16);
  spec.window = kWindow;
  return spec;
}

std::string accuracy_text(const Json& task) {
  return fmt::format("{} ({}/{}, {} to {})", percent(task["accuracy"]), task["correct"].get<int64_t>(),
                     task["questions"].get<int64_t>(), percent(task["interval"][0]), percent(task["interval"][1]));
}

std::string proof_line(const Json& evidence) {
  const Json& rule = evidence["rules"][0];
  return fmt::format("proof: {} calls at {} site{} changed {} of {} elements",
                     format_count(rule["calls"].get<int64_t>()), rule["sites"].get<int64_t>(),
                     rule["sites"] == 1 ? "" : "s", format_count(rule["changed"].get<int64_t>()),
                     format_count(rule["elements"].get<int64_t>()));
}

// ---- diagnosis

at::Tensor diagnosis_prompt(const Stage& stage) {
  std::vector<int64_t> tokens = stage.loaded.tokenizer.encode(
      "A train leaves the station at nine and covers sixty miles an hour. How far has it gone at noon?");
  if (std::ssize(tokens) > kProbedTokens) tokens.resize(kProbedTokens);
  return at::tensor(tokens, at::kLong).unsqueeze(0);
}

diagnose::Diagnosis examine(const Stage& stage) {
  diagnose::Examiner examiner(*stage.loaded.model, at::kCPU, stage.seed, /*keep=*/false);
  diagnose::Examination examination;
  examination.tokens = diagnosis_prompt(stage);
  examination.seed = stage.seed;
  return examiner.run(examination);
}

void keep(const Stage& stage, const char* name, const Json& json) {
  record::write_result(stage.folder / name, json, stage.maker);
}

}  // namespace

Act census_act(Stage& stage) {
  Act act{.name = "census"};
  const model::ModelConfig& config = stage.loaded.model->config();
  int64_t parameters = 0;
  for (const model::CausalLm::Parameter& parameter : stage.loaded.model->parameters())
    parameters += parameter.tensor->numel();
  const tap::Censuses censuses = lab::take_censuses(*stage.loaded.model, site::Phase::kRollout, 1);
  constexpr std::pair<const char*, site::ForwardKind> kForwards[] = {{"prefill", site::ForwardKind::kPrefill},
                                                                     {"decode", site::ForwardKind::kDecode},
                                                                     {"score", site::ForwardKind::kWhole}};
  act.record = {{"model", stage.loaded.path.filename().string()},
                {"layers", config.layers},
                {"parameters", parameters},
                {"forwards", Json::object()}};
  act.lines.push_back(fmt::format("{}: {} layers, {} parameters", stage.loaded.path.filename().string(), config.layers,
                                  format_count(parameters)));
  for (const auto& [name, kind] : kForwards) {
    std::string line = fmt::format("{:<8}", name);
    Json families = Json::object();
    int64_t others = 0;
    for (const auto& [family, sum] : by_family(censuses.at(kind))) {
      families[family] = {{"calls", sum.calls}, {"flops", sum.flops}};
      if (family == "of no family")
        others = sum.calls;
      else
        line += fmt::format("{} {}, ", sum.calls, family);
    }
    act.lines.push_back(line + fmt::format("{} views and copies", others));
    act.record["forwards"][name] = families;
  }
  return act;
}

Act healthy_act(Stage& stage) {
  Act act{.name = "healthy"};
  const diagnose::Diagnosis diagnosis = examine(stage);
  act.as_it_should = !diagnosis.fault_found() && diagnosis.relations > 0;
  act.record = {{"verdict", diagnose::to_json(diagnosis)}, {"file", "healthy.json"}};
  keep(stage, "healthy.json", act.record["verdict"]);
  const std::string counted = fmt::format("{} relations on {} elements hold", format_count(diagnosis.relations),
                                          format_count(diagnosis.elements));
  act.lines.push_back(
      diagnosis.fault_found()
          ? styled(Style::kBad,
                   fmt::format("a fault was found at {} in the model as it came: this machine, the file, or a "
                               "false alarm",
                               diagnosis.candidates.front().place))
      : diagnosis.not_tested.empty() ? styled(Style::kGood, "healthy") + ": " + counted
                                     : styled(Style::kGood, "healthy where tested") + ": " + counted);
  for (const std::string& sentence : diagnosis.not_tested) act.lines.push_back("not tested: " + sentence);
  return act;
}

Act damage_act(Stage& stage, const PlantedFault& fault) {
  Act act{.name = "damage"};
  stage.progress("text, clean and broken");
  act.record = {{"fault", fault.text}, {"kind", fault.kind}, {"place", fault.place}, {"layer", fault.layer}};
  act.record["speech"] = speech_record(stage, fault);
  const Json& speech = act.record["speech"];
  act.lines.push_back(fmt::format("planted: {}", fault.text));
  act.lines.push_back(fmt::format("asked: {}", kQuestion));
  for (std::string& line :
       in_columns("clean\n" + speech["clean"].get<std::string>(), "broken\n" + speech["broken"].get<std::string>(), 46))
    act.lines.push_back(std::move(line));
  act.lines.push_back(proof_line(speech["evidence"]));

  stage.progress("perplexity and additions, clean and broken");
  const std::vector<lab::EvaluationRow> rows =
      lab::Evaluation(stage.loaded, evaluation_of(stage), {{fault.text, fault.recipe(stage.seed)}}).run({});
  for (const lab::EvaluationRow& row : rows)
    if (row.proof && !row.proof->complaints.empty()) throw EvidenceError("demo, evaluation: ", row.proof->complaints);
  const Json json = lab::evaluation_json(rows);
  act.record["rows"] = json;
  act.record["answers"] = answer_events(rows);
  const Json &clean = json[0], &broken = json[1];
  act.lines.push_back(fmt::format("perplexity   clean {:.2f}, broken {:.2f}: {:+.3f} nats a token ({:+.3f} to {:+.3f})",
                                  clean["text"]["perplexity"].get<double>(), broken["text"]["perplexity"].get<double>(),
                                  broken["text"]["added_nats"].get<double>(),
                                  broken["text"]["added_nats_interval"][0].get<double>(),
                                  broken["text"]["added_nats_interval"][1].get<double>()));
  act.lines.push_back(fmt::format("additions    clean {}, broken {}, p = {:.2g}", accuracy_text(clean["task"]),
                                  accuracy_text(broken["task"]), broken["task"]["p_mcnemar"].get<double>()));
  act.lines.push_back(proof_line(broken["evidence"]));
  return act;
}

Act diagnosis_act(Stage& stage, const PlantedFault& fault) {
  Act act{.name = "diagnosis"};
  lab::Injection injection(recipe::read_plan_spec(fault.recipe(stage.seed)), *stage.loaded.model,
                           site::Phase::kDiagnose, 1);
  injection.arm();
  const diagnose::Diagnosis diagnosis = examine(stage);
  if (const lab::Injection::Proof proof = injection.finish(); !proof.complaints.empty())
    throw EvidenceError("demo, diagnosis: ", proof.complaints);
  const diagnose::Planted planted = diagnose::planted_by(injection.plan());
  act.record = {{"verdict", diagnose::to_json(diagnosis)},
                {"file", "verdict.json"},
                {"planted",
                 {{"calls", planted.calls},
                  {"changed", planted.changed},
                  {"layer", fault.layer},
                  {"place", fault.place},
                  {"kind", fault.kind}}},
                {"accused_layer", nullptr}};
  keep(stage, "verdict.json", act.record["verdict"]);
  if (!diagnosis.fault_found()) {
    act.as_it_should = false;
    act.record["layer_right"] = act.record["kind_right"] = false;
    act.lines.push_back(styled(Style::kBad, "not found: ") + "the diagnosis calls this model healthy, and it is not");
  } else {
    const diagnose::Candidate& first = diagnosis.candidates.front();
    const bool layer_right = first.layer == fault.layer, kind_right = first.kind == fault.kind;
    act.as_it_should = layer_right;
    act.record["layer_right"] = layer_right, act.record["kind_right"] = kind_right;
    if (first.layer >= 0) act.record["accused_layer"] = first.layer;
    act.lines.push_back(styled(layer_right ? Style::kGood : Style::kBad, layer_right ? "found" : "wrongly accused") +
                        fmt::format(": {}, {}{} [{}]", first.place, first.kind,
                                    first.detail.empty() ? "" : " (" + first.detail + ")",
                                    diagnose::certainty_name(first.certainty)));
    if (!kind_right) act.lines.push_back(fmt::format("the kind is not named rightly: planted was {}", fault.kind));
    const std::size_t others = diagnosis.candidates.size() - 1;
    if (others > 0) act.lines.push_back(fmt::format("and {} other place{} accused", others, others == 1 ? "" : "s"));
  }
  act.lines.push_back(fmt::format("proof: while it looked, {} elements were changed in {} calls",
                                  format_count(planted.changed), format_count(planted.calls)));
  return act;
}

}  // namespace faultline::cli
