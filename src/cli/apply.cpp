// `faultline apply`: a fault, or a chain of them, on a tensor from a file or on a generated Gaussian; the quickest way
// to see what a fault does. Every call starts from the same input, as a site does that is reached again, so the ledger
// of several calls is one of independent draws. Nothing is written unless the evidence is there.
#include "numeric/apply.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <set>

#include "base/json.h"
#include "cli/command.h"
#include "cli/generated_input.h"
#include "cli/ledger_report.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "numeric/resolution.h"
#include "numeric/tensor_file.h"

namespace faultline::cli {
namespace {

struct ApplyOptions {
  std::vector<std::string> faults;
  std::string input, tensor, output;
  std::string shape = "1024x1024", dtype = "fp32", deviation = "1", mean = "0";
  std::string site = "tensor", step = "0", calls = "1";
  bool force = false, dtype_given = false;
};

struct Outcome {
  at::Tensor before, after;  // on the device
  std::vector<LedgerReport> reports;
  double nonzero_before = 0, nonzero_after = 0;  // of the chain, over all calls
};

// What a recipe may say but a single tensor cannot show is refused: no key may silently do nothing.
numeric::Rule read_fault_argument(const std::string& text) {
  const std::size_t start = text.find_first_not_of(" \t\n");
  if (start != std::string::npos && text[start] != '{' && text.find('@') != std::string::npos) {
    throw UsageError(fmt::format("fault '{}': apply acts on one tensor; leave out what follows the '@'", text));
  }
  numeric::Rule rule = numeric::parse_rule(text, numeric::RuleUse::kOnTensor);
  const char* ignored = rule.schedule            ? "schedule"
                        : !rule.phases.is_null() ? "phases"
                        : rule.reevaluate        ? "reevaluate"
                                                 : nullptr;
  if (rule.gradient == numeric::GradientRule::kMasked) ignored = "gradient: masked";
  if (ignored != nullptr)
    throw UsageError(fmt::format(
        "fault '{}': apply is one forward pass over one tensor and cannot honour '{}'; leave it out", text, ignored));
  return rule;
}

std::vector<numeric::Rule> read_chain(const std::vector<std::string>& texts) {
  std::vector<numeric::Rule> rules;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    numeric::Rule rule = read_fault_argument(text);
    const std::string name = rule.name;
    for (int i = 2; !names.insert(rule.name).second; ++i)
      rule.name = fmt::format("{}_{}", name, i);  // or both would draw alike
    rule.source.set("name", rule.name);
    rules.push_back(std::move(rule));
  }
  return rules;
}

at::Tensor make_input(const ApplyOptions& options, const Globals& globals) {
  const at::ScalarType dtype = parse_dtype(options.dtype);
  if (!options.input.empty()) {
    numeric::TensorFileRequest request{options.tensor, {}};
    if (options.dtype_given) request.opaque = dtype;
    const at::Tensor tensor = numeric::read_tensor_file(options.input, request);
    return options.dtype_given ? tensor.to(dtype) : tensor;
  }
  if (!options.tensor.empty()) throw UsageError("--tensor names a tensor of --input FILE; give the file too");
  return gaussian_tensor({parse_shape(options.shape), dtype, parse_number("--mean", options.mean, -1e30, 1e30),
                          parse_number("--std", options.deviation, 0, 1e30), globals.seed()});
}

void check_output(const ApplyOptions& options) {
  if (options.output.empty()) return;
  numeric::check_tensor_suffix(options.output);
  std::error_code ignored;
  const bool same = !options.input.empty() && std::filesystem::equivalent(options.input, options.output, ignored);
  if (same && !options.force)
    throw UsageError(fmt::format("--output {} is the input; choose another name, or say --force", options.output));
}

double nonzero_count(const at::Tensor& x) { return static_cast<double>(x.ne(0).sum().item<int64_t>()); }

Outcome apply_chain(const at::Tensor& input, const std::vector<numeric::Rule>& rules, const numeric::Identity& identity,
                    uint32_t step, uint32_t calls) {
  Outcome outcome;
  outcome.before = input;
  const numeric::Dtype dtype = numeric::dtype_of(input);
  for (const numeric::Rule& rule : rules) numeric::check_visible(rule, dtype);
  std::vector<at::Tensor> ledgers;
  ledgers.reserve(rules.size());
  for (std::size_t i = 0; i < rules.size(); ++i) ledgers.push_back(numeric::make_ledger(input.device()));
  const at::Tensor nonzero = input.ne(0);
  for (uint32_t call = 0; call < calls; ++call) {
    outcome.after = input.clone();
    for (std::size_t i = 0; i < rules.size(); ++i)
      numeric::apply_(outcome.after, rules[i], identity, {step, call, {}}, {{}, ledgers[i], {}});
    outcome.nonzero_after += nonzero_count(outcome.after.ne(0).logical_and_(nonzero));
  }
  outcome.nonzero_before = calls * nonzero_count(nonzero);
  for (std::size_t i = 0; i < rules.size(); ++i) outcome.reports.push_back(make_report(rules[i], dtype, ledgers[i]));
  return outcome;
}

// The command as typed, with the seed written out.
std::string replay_command(const Globals& globals) {
  std::string command = "faultline";
  bool seeded = false;
  for (const std::string& argument : globals.arguments) {
    seeded = seeded || argument == "--seed" || argument.starts_with("--seed=");
    command += " " + shell_quoted(argument);
  }
  return seeded ? command : command + " --seed " + globals.seed_text;
}

std::string source_text(const ApplyOptions& options) {
  if (options.input.empty()) return fmt::format("N({}, {}^2)", options.mean, options.deviation);
  return options.tensor.empty() ? options.input : options.input + ":" + options.tensor;
}

void print_outcome_json(const ApplyOptions& options, const Globals& globals, const Outcome& outcome, bool complete) {
  Json json = {{"command", "apply"}, {"input", source_text(options)}, {"shape", outcome.before.sizes().vec()}};
  json["dtype"] = numeric::dtype_name(numeric::dtype_of(outcome.before));
  json["device"] = outcome.before.device().str();
  json["seed"] = globals.seed();
  json["site"] = options.site;
  json["rules"] = Json::array();
  for (const LedgerReport& report : outcome.reports) json["rules"].push_back(report_json(report));
  json["chain"] = {
      {"nonzero_before", outcome.nonzero_before},
      {"nonzero_after", outcome.nonzero_after},
      {"survival", outcome.nonzero_before > 0 ? Json(outcome.nonzero_after / outcome.nonzero_before) : Json()}};
  json["digest_before"] = digest_text(outcome.before);
  json["digest_after"] = digest_text(outcome.after);
  json["output"] = options.output.empty() || !complete ? Json() : Json(options.output);
  json["evidence"] = complete ? "present" : "missing";
  json["replay"] = replay_command(globals);
  print_json(json);
}

void print_outcome(const ApplyOptions& options, const Globals& globals, const Outcome& outcome, bool complete) {
  print(fmt::format("{}, shape ({}), {} on {}, seed {}\n\n", source_text(options),
                    fmt::join(outcome.before.sizes(), ", "), numeric::dtype_name(numeric::dtype_of(outcome.before)),
                    outcome.before.device().str(), globals.seed()));
  for (const LedgerReport& report : outcome.reports) print(report_text(report) + "\n");
  const bool any = outcome.nonzero_before > 0;
  print(table(
      {{"chain survival", any ? fmt::format("{:.4g} %", 100 * outcome.nonzero_after / outcome.nonzero_before) : "-"},
       {"digest before", digest_text(outcome.before)},
       {"digest after", digest_text(outcome.after)}}));
  if (!options.output.empty() && complete) print(fmt::format("written to {}\n", options.output));
  if (!globals.quiet) print(fmt::format("replay: {}\n", replay_command(globals)));
}

ExitCode apply(const ApplyOptions& options, const Globals& globals) {
  const std::vector<numeric::Rule> rules = read_chain(options.faults);
  const auto step = static_cast<uint32_t>(parse_count("--step", options.step, 0, 0xFFFFFFFF));
  const auto calls = static_cast<uint32_t>(parse_count("--calls", options.calls, 1, 1'000'000));
  check_output(options);
  const at::Device device = open_device(globals.device);
  const at::Tensor input = make_input(options, globals).to(device);
  const Outcome outcome = apply_chain(input, rules, {globals.seed(), options.site, 0}, step, calls);
  std::vector<Complaint> complaints;
  for (const LedgerReport& report : outcome.reports)
    complaints.insert(complaints.end(), report.complaints.begin(), report.complaints.end());
  if (complaints.empty() && !options.output.empty()) {
    numeric::write_tensor_file(options.output, outcome.after, options.tensor.empty() ? "tensor" : options.tensor);
  }
  if (globals.json) {
    print_outcome_json(options, globals, outcome, complaints.empty());
  } else {
    print_outcome(options, globals, outcome, complaints.empty());
  }
  if (!complaints.empty()) throw EvidenceError("evidence missing: ", complaints);
  return ExitCode::kOk;
}

std::vector<std::string> fault_words() {
  std::vector<std::string> words;
  for (const numeric::KindInfo& info : numeric::kind_infos()) words.push_back(info.name);
  for (const numeric::FormatInfo& info : numeric::format_infos())
    words.push_back(fmt::format("quantize(format={})", info.name));
  return words;
}

void add_input_options(CLI::App& command, ApplyOptions& options) {
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    return command.add_option(name, value, text)->group("Input")->type_name(type);
  };
  CLI::Option* input = option("--input", options.input,
                              "a .npy or .safetensors file; without it a Gaussian is made from the seed", "FILE");
  option("--tensor", options.tensor, "which tensor of a .safetensors file", "NAME");
  option("--shape", options.shape, "of the Gaussian", "AxBx…")->capture_default_str()->excludes(input);
  option("--std", options.deviation, "of the Gaussian, 0 or more", "S")->capture_default_str()->excludes(input);
  option("--mean", options.mean, "of the Gaussian, -1e30 to 1e30", "M")->capture_default_str()->excludes(input);
  offer(option("--dtype", options.dtype, "fp32, bf16, fp16 or fp64 (CPU); a file is converted to it", "NAME")
            ->capture_default_str(),
        dtype_names());
}

}  // namespace

void add_apply(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("apply", "a fault or number format on a tensor, with its ledger");
  auto options = std::make_shared<ApplyOptions>();
  offer(
      command
          ->add_option("fault", options->faults, "kind(parameter=value, …) or {kind: …}; several are applied in order")
          ->required()
          ->type_name(""),
      fault_words());
  add_input_options(*command, *options);
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    command->add_option(name, value, text)->group("Random identity")->type_name(type)->capture_default_str();
  };
  option("--site", options->site, "the site's name, part of the random identity", "NAME");
  option("--step", options->step, "the training step, 0 or more", "N");
  option("--calls", options->calls, "how often the site is reached, 1 to 1000000; each call starts from the input",
         "N");
  command->add_option("--output", options->output, "write the result of the last call: .npy or .safetensors")
      ->group("Output")
      ->type_name("FILE");
  command->add_flag("--force", options->force, "let --output replace the input")->group("Output");
  command->footer(
      "Examples:\n  faultline apply 'relative_gaussian(strength=0.05)' --dtype bf16\n"
      "  faultline apply 'deadzone(threshold=0.04)' 'quantize(format=mxfp4)' --input x.npy --output y.npy\n\n"
      "Global options (--seed, --device, --json, …): see `faultline --help`.");
  command->callback([&run, &globals, options, command] {
    options->dtype_given = command->count("--dtype") > 0;
    run = [&globals, options] { return apply(*options, globals); };
  });
}

}  // namespace faultline::cli
