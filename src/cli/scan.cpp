// `faultline scan`: what number formats would do to a model's weights and activations, worst tensors first.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <sstream>

#include "base/files/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/interruption.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "diagnose/quant_scan.h"
#include "numeric/fault.h"

namespace faultline::cli {
namespace {

struct ScanCommand : ModelOptions {
  std::string formats = "mxfp4", prompt = "How many apples are left if seven of twenty are eaten?", surface = "all",
              rows = "12", out;
};

std::vector<std::string> formats_of(const std::string& text) {
  std::vector<std::string> known, chosen;
  for (const numeric::FormatInfo& info : numeric::format_infos()) known.push_back(info.name);
  if (text == "all") return {};
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(fmt::format("--formats: there is no format '{}'{}", name, did_you_mean(name, known)));
    chosen.push_back(name);
  }
  return chosen;
}

std::string bar(double db) { return std::string(static_cast<std::size_t>(std::clamp(db, 0.0, 60.0)), '#'); }

void show(const Json& json, std::size_t limit) {
  std::vector<std::vector<std::string>> rows = {
      {"tensor", "surface", "format", "SQNR dB", "dead zone", "clipped", "outlier"}};
  for (const Json& row : json["rows"]) {
    if (rows.size() > limit) break;
    rows.push_back({row["place"], row["surface"], row["format"],
                    row["sqnr_db"].is_null() ? "exact" : fmt::format("{:.2f}", row["sqnr_db"].get<double>()),
                    fmt::format("{:.2f} %", 100 * row["dead_zone"].get<double>()),
                    fmt::format("{:.3f} %", 100 * row["clipped"].get<double>()),
                    fmt::format("{:.1f}", row["outlier"].get<double>())});
  }
  print(styled(Style::kHeading, "worst first") + "\n" + table(rows));
  for (const auto& [format, layers] : json["suggested"].items()) {
    print("\n" + styled(Style::kHeading, format) + "  layer outputs: SQNR by layer, and the strength of equal noise\n");
    std::map<int64_t, double> by_layer;
    for (const auto& [layer, strength] : layers.items()) by_layer[std::stoll(layer)] = strength.get<double>();
    for (const auto& [layer, strength] : by_layer) {
      const double db = -20 * std::log10(strength);
      print(fmt::format("  {:>3}  {:6.2f} dB  {:.4f}  {}\n", layer, db, strength, bar(db)));
    }
  }
}

ExitCode scan(const ScanCommand& options, const Globals& globals) {
  diagnose::ScanOptions wanted;
  wanted.formats = formats_of(options.formats);
  if (options.surface != "all" && options.surface != "weights" && options.surface != "activations")
    throw UsageError(fmt::format("--surface: weights, activations or all; got '{}'", options.surface));
  wanted.weights = options.surface != "activations", wanted.activations = options.surface != "weights";
  const auto limit = static_cast<std::size_t>(parse_count("--rows", options.rows, 1, 1 << 20));
  on_interrupt_say("nothing is kept; the same command begins again");
  lab::LoadedModel loaded = open_model(options, globals);
  const std::vector<int64_t> tokens = loaded.tokenizer.encode(options.prompt);
  if (tokens.empty()) throw UsageError("--prompt: there is no token in it");
  wanted.tokens = at::tensor(tokens, at::kLong).unsqueeze(0);
  Json json = diagnose::scan_json(diagnose::quant_scan(*loaded.model, wanted));
  if (!options.out.empty()) {
    Json record = json;
    record["kind"] = "scan";
    record::write_result(options.out, record, maker_of(globals, &loaded));
  }
  if (globals.json) {
    json["command"] = "scan", json["model"] = loaded.path.string();
    print_json(json);
  } else {
    show(json, limit);
  }
  return ExitCode::kOk;
}

}  // namespace

void add_scan(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand("scan", "what number formats do to a model's weights and activations");
  auto options = std::make_shared<ScanCommand>();
  add_model_options(*command, *options);
  const auto option = [&](const char* name, std::string& value, const char* text, const char* type) {
    return command->add_option(name, value, text)->group("Scan")->type_name(type)->capture_default_str();
  };
  option("--formats", options->formats, "names with commas between, or all", "NAME,…");
  offer(option("--surface", options->surface, "weights, activations or all", "NAME"),
        {"weights", "activations", "all"});
  option("--prompt", options->prompt, "the text whose activations are looked at", "TEXT");
  option("--rows", options->rows, "how many of the worst tensors to show, 1 or more", "N");
  command->add_option("--out", options->out, "write all tensors here, for `faultline report`")
      ->group("Output")
      ->type_name("FILE");
  command->footer(
      "Examples:\n  faultline scan --formats mxfp4,fp8_e4m3 --surface activations\n"
      "  faultline scan --formats all --surface weights --rows 5\n"
      "  faultline scan --formats all --out scan.json\n\nGlobal options: see "
      "`faultline --help`.");
  command->callback([&run, &globals, options] { run = [&globals, options] { return scan(*options, globals); }; });
}

}  // namespace faultline::cli
