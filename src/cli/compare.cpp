// `faultline compare`: where two machines, or two number types, differ, operator by operator; of two recorded traces,
// which operator of which side was the first to be wrong. With --out also a recipe whose `profile` faults re-create the
// second side's differences on the first.
#include "diagnose/compare/compare.h"
#include "base/json.h"
#include "diagnose/compare/divergence.h"
#include "diagnose/compare/probe_text.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cli/model_options.h"
#include "cli/output.h"
#include "lab/injection.h"

namespace faultline::cli {
namespace {

struct CompareOptions : ModelOptions {
  std::string a = "cpu", b = "cpu:fp32", prompt = "How many apples are left if seven of twenty are eaten?", out, record,
              detail = "full";
};

// "cuda", "cpu:fp32", "cuda:1:bf16"
diagnose::Side read_side(const std::string& option, const std::string& text, const std::string& dtype) {
  const std::size_t colon = text.rfind(':');
  const std::string last = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool typed = last == "bf16" || last == "fp16" || last == "fp32";
  if (text.empty()) throw UsageError(option + ": a device, perhaps with a type: cpu, cuda, cpu:fp32");
  return {open_device(typed ? text.substr(0, colon) : text), model_dtype(typed ? last : dtype)};
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  if (!(file << text)) throw RuntimeFailure(path.string() + ": cannot be written");
}

lab::LoadedModel load_side(const CompareOptions& options, diagnose::Side& side, at::Tensor& tokens) {
  side = read_side("--a", options.a, options.dtype);
  lab::LoadOptions load;
  load.dtype = side.dtype, load.device = side.device;
  fetch_default_model(options.model);
  lab::LoadedModel loaded = lab::load_model(options.model, load);
  const std::vector<int64_t> ids = loaded.tokenizer.encode(options.prompt);
  if (ids.empty()) throw UsageError("--prompt: there is no token in it");
  tokens = at::tensor(ids, at::kLong).unsqueeze(0).to(side.device);
  return loaded;
}

ExitCode record(const CompareOptions& options, const Globals& globals) {
  if (diagnose::is_trace(options.a))
    throw UsageError("--record: --a is a trace already; give a device, as cpu or cuda");
  diagnose::TraceOptions trace;
  trace.detail = diagnose::detail_by_name(options.detail);
  const std::vector<numeric::Rule> rules = read_faults(options.faults);
  refuse_invisible(rules, options);
  diagnose::Side side;
  at::Tensor tokens;
  lab::LoadedModel loaded = load_side(options, side, tokens);
  trace.header = {{"engine", "faultline"}, {"torch", TORCH_VERSION}, {"role", "script"}, {"rank", 0}, {"world", 1}};
  trace.header["device"] = c10::DeviceTypeName(side.device.type(), /*lower_case=*/true);
  trace.header["tokenizer"] = diagnose::tokens_digest(loaded.tokenizer.encode(diagnose::kProbeText, false));
  trace.weights = diagnose::weights_of(*loaded.model);
  std::unique_ptr<lab::Injection> injection;
  if (!rules.empty()) {
    recipe::PlanSpec plan = recipe::read_plan_spec(recipe::recipe_of_rules(rules, globals.seed()));
    injection = std::make_unique<lab::Injection>(std::move(plan), *loaded.model, site::Phase::kDiagnose, 1);
    injection->arm();
  }
  diagnose::TraceWriter writer(options.record, std::move(trace));
  diagnose::trace_forward(*loaded.model, tokens, writer);
  writer.finish();
  Json json = {{"command", "compare"}, {"recorded", writer.calls()}, {"trace", options.record}};
  std::vector<Complaint> complaints;
  if (injection) {
    lab::Injection::Proof proof = injection->finish();
    json["evidence"] = proof.report, json["complaints"] = to_json(proof.complaints);
    complaints = std::move(proof.complaints);
  }
  if (globals.json)
    print_json(json);
  else if (!complaints.empty())
    print(styled(Style::kBad, "evidence missing: ") + joined_sentences(complaints) + "\n");
  else
    print(fmt::format("{} calls recorded; beside another trace: faultline compare --a {} --b TRACE\n", writer.calls(),
                      options.record));
  return complaints.empty() ? ExitCode::kOk : ExitCode::kEvidence;
}

std::string where_of(const diagnose::Profile& profile) {
  if (profile.place.empty()) return fmt::format("{{operator: {}}}", profile.family);
  const std::string role = site::role_of_path(profile.place);
  const std::string layer = profile.layer >= 0 ? fmt::format(", layer: {}", profile.layer) : "";
  if (profile.family.empty() || profile.family == "matmul" || profile.family == "norm")
    return fmt::format("{{module: {}, surface: output{}}}", role == "layer" ? "layer_output" : role, layer);
  return fmt::format("{{operator: {}{}}}", profile.family, layer);
}

// What makes the mismatch again: the wrong places alone where there are any, else every family's rounding.
void write_findings(const diagnose::Divergence& found, const Json& json, const CompareOptions& options,
                    const std::string& dtype) {
  const std::filesystem::path folder = options.out;
  std::filesystem::create_directories(folder);
  write_file(folder / "comparison.json", json.dump(1) + "\n");
  const bool any_wrong = !found.first.empty();
  std::vector<diagnose::ProfileRule> rules;
  for (const diagnose::Profile& profile : found.profiles) {
    if ((any_wrong && profile.place.empty()) || (profile.place.empty() && profile.family.empty())) continue;
    rules.push_back({profile.place.empty() ? profile.family : fmt::format("wrong-{}", rules.size() + 1),
                     where_of(profile), fmt::format("noise to signal {:.3g}", profile.errors.noise_to_signal),
                     profile.errors});
  }
  const std::string title = fmt::format("what was measured between {} and {}", options.a, options.b);
  diagnose::write_profile_rules(folder, title, options.model, dtype, rules);
}

std::string percent_or_dash(double value) { return std::isfinite(value) ? fmt::format("{:.3g}", value) : "–"; }

void print_divergence(const diagnose::Divergence& found, const diagnose::Trace& a, const diagnose::Trace& b) {
  const bool good = found.verdict == "within_rounding" || found.verdict == "equal_bits";
  print(styled(good ? Style::kGood : Style::kBad, diagnose::verdict_sentence(found, a, b)) + "\n");
  std::vector<std::vector<std::string>> rows = {
      {"place", "surface", "difference", "own a", "own b", "bound", "another order"}};
  for (const diagnose::SharedPlace& one : found.places)
    rows.push_back({one.place, one.is_output ? "output" : "input", fmt::format("{:.3g}", one.difference),
                    one.is_output ? percent_or_dash(one.own_a) : "", one.is_output ? percent_or_dash(one.own_b) : "",
                    one.is_output ? percent_or_dash(one.allowed) : "", percent_or_dash(one.reordered)});
  if (rows.size() > 1) print(table(rows));
  if (found.tokens.tokens > 0)
    print(
        fmt::format("{} tokens: log-probabilities of b minus a: mean {:.3g}, largest {:.3g}; KL k1 {:.3g}, k3 {:.3g}; "
                    "effective sample share {:.4f}\n",
                    found.tokens.tokens, found.tokens.mean, found.tokens.largest, found.tokens.k1, found.tokens.k3,
                    found.tokens.effective_share));
  for (const std::string& sentence : found.without_partner) print("no partner: " + sentence + "\n");
  for (const std::string& sentence : found.remarks) print("note: " + sentence + "\n");
}

ExitCode compare_two_traces(const CompareOptions& options, const Globals& globals) {
  const diagnose::Trace a = diagnose::read_trace(options.a), b = diagnose::read_trace(options.b);
  const diagnose::Divergence found = diagnose::compare_traces(a, b);
  Json json = diagnose::to_json(found, a, b);
  json["command"] = "compare";
  if (!options.out.empty()) write_findings(found, json, options, b.said("dtype"));
  if (globals.json)
    print_json(json);
  else
    print_divergence(found, a, b);
  if (found.verdict == "wrong") return ExitCode::kFound;
  return found.verdict == "within_rounding" || found.verdict == "equal_bits" ? ExitCode::kOk : ExitCode::kEvidence;
}

ExitCode compare(const CompareOptions& options, const Globals& globals) {
  if (!options.record.empty()) return record(options, globals);
  if (!options.faults.empty()) throw UsageError("--fault: is of --record DIR; without it nothing is run with a fault");
  const bool second_is_trace = diagnose::is_trace(options.b);
  if (second_is_trace && diagnose::is_trace(options.a)) return compare_two_traces(options, globals);
  if (second_is_trace)
    throw UsageError("--b: a trace is compared with another trace, --a TRACE; to make its calls again give it as --a");
  const diagnose::Side second = read_side("--b", options.b, options.dtype);
  diagnose::Side first{at::kCPU, at::kFloat};
  std::optional<lab::LoadedModel> loaded;  // its weights are among the calls' arguments
  std::vector<diagnose::RecordedCall> calls;
  if (diagnose::is_trace(options.a)) {
    diagnose::StoredCalls stored = diagnose::stored_calls(options.a);
    calls = std::move(stored.calls), first.dtype = stored.dtype;
  } else {
    at::Tensor tokens;
    loaded = load_side(options, first, tokens);
    calls = diagnose::record_forward(*loaded->model, tokens);
  }
  const diagnose::Comparison comparison = diagnose::compare_sides(calls, second);
  if (!options.out.empty())
    diagnose::write_profiles(options.out, comparison, {options.a, options.b, options.model, first.dtype});
  if (globals.json) {
    Json json = diagnose::to_json(comparison);
    json["command"] = "compare", json["a"] = options.a, json["b"] = options.b;
    print_json(json);
    return ExitCode::kOk;
  }
  std::vector<std::vector<std::string>> rows = {{"operator", "calls", "equal", "noise to signal", "mean", "worst"}};
  for (const diagnose::Difference& one : comparison.operators) {
    rows.push_back({one.operation, fmt::format("{}", one.calls), fmt::format("{:.2f} %", 100 * one.errors.share_equal),
                    fmt::format("{:.3g}", one.errors.noise_to_signal), fmt::format("{:.2g}", one.errors.mean),
                    fmt::format("{:.3g}", one.errors.worst)});
  }
  print(table(rows));
  for (const std::string& sentence : comparison.not_compared) print("not compared: " + sentence + "\n");
  return ExitCode::kOk;
}

}  // namespace

void add_compare(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command =
      app.add_subcommand("compare", "two machines, number types or recorded engines, operator by operator");
  auto options = std::make_shared<CompareOptions>();
  add_model_options(*command, *options);
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    command->add_option(name, value, text)->group("Comparison")->type_name(type)->capture_default_str();
  };
  option("--a", options->a, "where the model runs: DEVICE or DEVICE:TYPE; or a trace", "SIDE");
  option("--b", options->b, "where each call is made again; or a second trace: which side is wrong first?", "SIDE");
  option("--prompt", options->prompt, "the text that is run", "TEXT");
  command->add_option("--record", options->record, "compare nothing: record --a as a trace in this folder")
      ->group("Output")
      ->type_name("DIR");
  command->add_option("--detail", options->detail, "of --record: digest, sample or full")
      ->group("Output")
      ->type_name("DETAIL")
      ->capture_default_str();
  add_fault_option(*command, *options, "of --record: a fault to record --a with; may be repeated");
  command->add_option("--out", options->out, "write profiles and a recipe that re-creates them into this folder")
      ->group("Output")
      ->type_name("DIR");
  command->footer(
      "Exit status of two traces: 0 within rounding, 1 an operator is wrong, 3 not everything could be judged.\n\n"
      "Examples:\n  faultline compare --a cpu --b cuda\n  faultline compare --a cpu:bf16 --b cpu:fp32\n  faultline "
      "compare --a cuda --record h200\n  faultline compare --a h200 --b cpu\n  "
      "faultline compare --a h200 --b vllm-trace --out findings\n\n" +
      where_help() + "Global options: see `faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return compare(*options, globals); }; });
}

}  // namespace faultline::cli
