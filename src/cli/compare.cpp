// `faultline compare`: where two machines, or two number types, differ, operator by operator; with --out also a recipe
// whose `profile` faults re-create the second machine's differences on the first.
#include "diagnose/compare/compare.h"
#include "base/json.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>

#include "cli/model_options.h"
#include "cli/output.h"

namespace faultline::cli {
namespace {

struct CompareOptions : ModelOptions {
  std::string a = "cpu", b = "cpu:fp32", prompt = "How many apples are left if seven of twenty are eaten?", out, record;
};

// "cuda", "cpu:fp32", "cuda:1:bf16"
diagnose::Side read_side(const std::string& option, const std::string& text, const std::string& dtype) {
  const std::size_t colon = text.rfind(':');
  const std::string last = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool typed = last == "bf16" || last == "fp16" || last == "fp32";
  if (text.empty()) throw UsageError(option + ": a device, perhaps with a type: cpu, cuda, cpu:fp32");
  return {open_device(typed ? text.substr(0, colon) : text), model_dtype(typed ? last : dtype)};
}

// The first side's calls: of a forward here, or of one that was recorded elsewhere.
std::vector<diagnose::RecordedCall> calls_of(const CompareOptions& options, diagnose::Side& first,
                                             std::optional<lab::LoadedModel>& loaded) {
  if (diagnose::is_trace(options.a)) {
    std::vector<diagnose::RecordedCall> calls = diagnose::read_trace(options.a);
    for (const diagnose::RecordedCall& call : calls)  // most of a forward computes in the model's type
      if (call.results[0].scalar_type() != at::kFloat) first.dtype = call.results[0].scalar_type();
    return calls;
  }
  first = read_side("--a", options.a, options.dtype);
  lab::LoadOptions load;
  load.dtype = first.dtype, load.device = first.device;
  fetch_default_model(options.model);
  loaded = lab::load_model(options.model, load);
  const std::vector<int64_t> tokens = loaded->tokenizer.encode(options.prompt);
  if (tokens.empty()) throw UsageError("--prompt: there is no token in it");
  return diagnose::record_forward(*loaded->model, at::tensor(tokens, at::kLong).unsqueeze(0).to(first.device));
}

ExitCode compare(const CompareOptions& options, const Globals& globals) {
  const bool traces = diagnose::is_trace(options.b);
  if (traces && (!diagnose::is_trace(options.a) || !options.record.empty() || !options.out.empty()))
    throw UsageError(
        "--b: a trace is compared with another trace (--a TRACE), without --record and --out: nothing is made again; "
        "to make the calls of a trace again give it as --a and a device as --b");
  const diagnose::Side second =
      traces ? diagnose::Side{at::kCPU, at::kFloat} : read_side("--b", options.b, options.dtype);
  diagnose::Side first{at::kCPU, at::kFloat};
  std::optional<lab::LoadedModel> loaded;  // its weights are among the calls' arguments
  const std::vector<diagnose::RecordedCall> calls = calls_of(options, first, loaded);
  if (!options.record.empty()) {
    if (!diagnose::is_trace(options.record)) throw UsageError("--record: a file whose name ends in .safetensors");
    const int64_t count = diagnose::write_trace(options.record, calls);
    if (globals.json)
      print_json({{"command", "compare"}, {"recorded", count}, {"file", options.record}});
    else
      print(fmt::format("{} calls recorded; on the other machine: faultline compare --a {} --b DEVICE\n", count,
                        options.record));
    return ExitCode::kOk;
  }
  const diagnose::Comparison comparison = traces ? diagnose::compare_traces(calls, diagnose::read_trace(options.b))
                                                 : diagnose::compare_sides(calls, second);
  if (!options.out.empty())
    diagnose::write_profiles(options.out, comparison, {options.a, options.b, options.model, first.dtype});
  if (globals.json) {
    Json json = diagnose::to_json(comparison);
    json["command"] = "compare", json["a"] = options.a, json["b"] = options.b;
    print_json(json);
    return ExitCode::kOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"operator", "calls", "same inputs", "equal", "noise to signal", "mean", "worst"}};
  for (const diagnose::Difference& one : comparison.operators) {
    rows.push_back({one.operation, fmt::format("{}", one.calls), fmt::format("{}", one.same_inputs),
                    fmt::format("{:.2f} %", 100 * one.share_equal), fmt::format("{:.3g}", one.noise_to_signal),
                    fmt::format("{:.2g}", one.mean), fmt::format("{:.3g}", one.worst)});
  }
  print(table(rows));
  for (const std::string& sentence : comparison.not_compared) print("not compared: " + sentence + "\n");
  return ExitCode::kOk;
}

}  // namespace

void add_compare(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("compare", "two machines or number types, operator by operator");
  auto options = std::make_shared<CompareOptions>();
  add_model_options(*command, *options);
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    command->add_option(name, value, text)->group("Comparison")->type_name(type)->capture_default_str();
  };
  option("--a", options->a, "where the model runs: DEVICE or DEVICE:TYPE; or a trace of another machine", "SIDE");
  option("--b", options->b, "where each call is made again; or a second trace, to be compared as it is", "SIDE");
  option("--prompt", options->prompt, "the text that is run", "TEXT");
  command
      ->add_option("--record", options->record, "compare nothing: write the calls of --a into this .safetensors file")
      ->group("Output")
      ->type_name("FILE");
  command->add_option("--out", options->out, "write profiles and a recipe that re-creates them into this folder")
      ->group("Output")
      ->type_name("DIR");
  command->footer(
      "Examples:\n  faultline compare --a cpu --b cuda\n  faultline compare --a cpu:bf16 --b cpu:fp32\n  faultline "
      "compare --a cuda --record h200.safetensors\n  "
      "faultline compare --a h200.safetensors --b cpu\n  faultline compare --a h200.safetensors --b "
      "b200.safetensors\n\nGlobal "
      "options: see `faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return compare(*options, globals); }; });
}

}  // namespace faultline::cli
