#include "cli/model_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <set>

#include "base/progress.h"
#include "cli/device.h"

namespace faultline::cli {

void add_model_options(CLI::App& command, ModelOptions& options) {
  command.add_option("--model", options.model, "default, a Hugging Face folder, or a .gguf file")
      ->group("Model")
      ->type_name("NAME")
      ->capture_default_str();
  offer(command.add_option("--dtype", options.dtype, "what it computes in: bf16, fp16 or fp32")
            ->group("Model")
            ->type_name("NAME")
            ->capture_default_str(),
        {"bf16", "fp16", "fp32"});
}

void add_fault_option(CLI::App& command, ModelOptions& options, const char* text) {
  command.add_option("--fault", options.faults, text)->group("Faults")->type_name("'KIND(…) @ WHERE'");
}

at::ScalarType model_dtype(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  if (name == "fp32") return at::kFloat;
  throw UsageError(fmt::format("--dtype: a model computes in bf16, fp16 or fp32; got '{}'", name));
}

LoadedModel open_model(const ModelOptions& options, const Globals& globals) {
  LoadOptions load;
  load.dtype = model_dtype(options.dtype);
  load.device = open_device(globals.device);
  constexpr int64_t kTicks = 1000;
  Progress progress("loading", kTicks, {.unit = "‰", .quiet = globals.quiet || ::isatty(STDERR_FILENO) == 0});
  int64_t done = 0;
  load.progress = [&](double share) {
    const auto now = static_cast<int64_t>(share * kTicks);
    if (now > done) progress.advance(now - done), done = now;
  };
  return load_model(options.model, load);
}

std::vector<Rule> read_faults(const std::vector<std::string>& texts) {
  std::vector<Rule> rules;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    Rule rule = parse_rule(text, RuleUse::kInPlan);
    const std::string name = rule.name;
    for (int i = 2; !names.insert(rule.name).second; ++i) rule.name = fmt::format("{}_{}", name, i);
    rule.source.set("name", rule.name);
    rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace faultline::cli
