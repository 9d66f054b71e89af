// `faultline generate`: a prompt, the model's answer as it is made, and, with faults, the broken answer below it, with
// the token at which they part and the evidence that the fault was there.
#include "model/generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "base/json.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "lab/injection.h"
#include "task/evaluate.h"

namespace faultline::cli {
namespace {

struct GenerateCommand : ModelOptions {
  std::string prompt, tokens = "64", temperature = "0", top_k = "0", top_p = "1";
  bool raw = false;
};

struct Text {
  std::string text;
  model::Completion completion;
  double seconds = 0;
};

model::Request make_request(const GenerateCommand& options, const Globals& globals, const lab::LoadedModel& loaded) {
  if (options.prompt.empty())
    throw UsageError("the prompt is empty; give a text, e.g. faultline generate \"Why is the sky blue?\"");
  model::Request request;
  request.prompt =
      options.raw ? loaded.tokenizer.encode(options.prompt) : task::prompt_tokens(loaded.tokenizer, options.prompt);
  request.max_new_tokens = static_cast<int64_t>(parse_count("--max-new-tokens", options.tokens, 1, 1 << 20));
  request.key = globals.seed();
  request.sampling = {parse_number("--temperature", options.temperature, 0, 100),
                      static_cast<int64_t>(parse_count("--top-k", options.top_k, 0, 1 << 20)),
                      parse_number("--top-p", options.top_p, 0, 1)};
  return request;
}

Text answer_prompt(const lab::LoadedModel& loaded, const model::Request& request, bool show) {
  model::StreamDecoder decoder(loaded.tokenizer);
  Text result;
  model::GenerateOptions options;
  options.slots = 1;
  options.end_tokens = task::all_end_tokens(*loaded.model, loaded.tokenizer);
  const auto add = [&](const std::string& piece) {
    result.text += piece;
    if (show) print_now(piece);
  };
  options.on_tokens = [&](std::size_t, const std::vector<int64_t>& fresh) {
    for (const int64_t token : fresh) add(decoder.push(token));
  };
  model::Generator generator(*loaded.model, options);
  const auto start = std::chrono::steady_clock::now();
  result.completion = generator.run({request}).front();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  add(decoder.finish());
  if (show) print_now("\n");
  return result;
}

Json text_json(const Text& text) {
  const auto count = static_cast<double>(text.completion.tokens.size());
  return {{"text", text.text},
          {"tokens", text.completion.tokens},
          {"ended", text.completion.ended},
          {"seconds", text.seconds},
          {"tokens_per_second", count / text.seconds}};
}

std::size_t first_difference(const model::Completion& a, const model::Completion& b) {
  const auto [left, right] = std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
  return static_cast<std::size_t>(left - a.tokens.begin());
}

ExitCode generate(const GenerateCommand& options, const Globals& globals) {
  const std::vector<numeric::Rule> rules = read_faults(options.faults);
  refuse_invisible(rules, options);
  lab::LoadedModel loaded = open_model(options, globals);
  const model::Request request = make_request(options, globals, loaded);
  const bool show = !globals.json;
  std::unique_ptr<lab::Injection> injection;
  if (!rules.empty()) {
    recipe::PlanSpec plan = recipe::read_plan_spec(recipe::recipe_of_rules(rules, globals.seed()));
    injection = std::make_unique<lab::Injection>(std::move(plan), *loaded.model, site::Phase::kRollout, 1);
    injection->self_check();
    if (show && !globals.quiet) print(styled(Style::kHeading, "clean") + "\n");
  }
  const Text clean = answer_prompt(loaded, request, show);
  Json json = {{"command", "generate"},
               {"model", loaded.path.string()},
               {"prompt", options.prompt},
               {"seed", globals.seed()},
               {"clean", text_json(clean)}};
  ExitCode code = ExitCode::kOk;
  if (injection) {
    if (show && !globals.quiet) print("\n" + styled(Style::kHeading, "with " + joined(options.faults, ", ")) + "\n");
    injection->arm();
    const Text faulty = answer_prompt(loaded, request, show);
    const lab::Injection::Proof proof = injection->finish();
    const std::size_t parted = first_difference(clean.completion, faulty.completion);
    const bool same = clean.completion.tokens == faulty.completion.tokens;
    json["faulty"] = text_json(faulty);
    json["first_different_token"] = same ? Json() : Json(parted);
    json["evidence"] = proof.report;
    json["complaints"] = to_json(proof.complaints);
    if (show && !globals.quiet) {
      print(same ? "\nThe two answers are the same token for token.\n"
                 : fmt::format("\nThe answers part at token {}.\n", parted + 1));
      for (const std::string& line : proof.log) print(line + "\n");
    }
    if (!proof.complaints.empty()) {
      code = ExitCode::kEvidence;
      if (show) print(styled(Style::kBad, "evidence missing: ") + joined_sentences(proof.complaints) + "\n");
    }
  } else if (show && !globals.quiet) {
    const auto count = static_cast<double>(clean.completion.tokens.size());
    fmt::print(stderr, "{} tokens in {:.2f} s, {:.1f} a second\n", count, clean.seconds, count / clean.seconds);
  }
  if (globals.json) print_json(json);
  return code;
}

}  // namespace

void add_generate(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("generate", "a model's answer to a prompt, clean and with faults");
  auto options = std::make_shared<GenerateCommand>();
  command->add_option("prompt", options->prompt, "what the model is asked; with --raw, the text to continue")
      ->required()
      ->type_name("");
  add_model_options(*command, *options);
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    command->add_option(name, value, text)->group("Sampling")->type_name(type)->capture_default_str();
  };
  option("--max-new-tokens", options->tokens, "at most so many tokens, 1 to 1048576", "N");
  option("--temperature", options->temperature, "0 is greedy; up to 100", "T");
  option("--top-k", options->top_k, "only the K likeliest tokens; 0: all", "K");
  option("--top-p", options->top_p, "only the likeliest tokens that hold this mass, 0 to 1", "P");
  command->add_flag("--raw", options->raw, "continue the text itself, without the chat template")->group("Sampling");
  add_fault_option(*command, *options, "a fault to show beside the clean answer; may be repeated");
  command->footer(
      std::string(
          "Examples:\n  faultline generate \"Why is the sky blue?\"\n"
          "  faultline generate \"Count to ten.\" --fault 'relative_gaussian(strength=0.1) @ operator=matmul'\n\n") +
      where_help() + "Global options (--seed, --device, --json, …): see `faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return generate(*options, globals); }; });
}

}  // namespace faultline::cli
