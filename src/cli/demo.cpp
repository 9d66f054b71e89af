// `faultline demo`: three faults and two number formats on generated data, each with the strength it must have. The
// expectations are theory (the normal distribution, the counts asked for, the known SQNR of the formats), not an
// earlier run; a realised strength outside its band ends the demo with exit code 3.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/generated_input.h"
#include "cli/ledger_report.h"
#include "cli/output.h"
#include "numeric/apply.h"
#include "numeric/resolution.h"

namespace faultline::cli {
namespace {

constexpr double kStandardErrors = 6.2;  // a false alarm in 10^9 runs
constexpr int64_t kRows = 1024, kColumns = 1024;

struct Band {
  double low, high;
};

struct Scene {
  const char* fault;
  at::ScalarType dtype;
  const char* measure;
  double (*value)(const LedgerNumbers&);
  Band (*expected)(const LedgerReport&);
};

double strength_of(const LedgerNumbers& n) { return n.relative_rms.value_or(0); }
double zeroed_share(const LedgerNumbers& n) { return n.zeroed / n.elements; }
double changed_count(const LedgerNumbers& n) { return n.changed; }
double sqnr_of(const LedgerNumbers& n) { return n.sqnr_db.value_or(0); }

Band strength_band(const LedgerReport& report) {
  return report.band ? Band{report.band->low, report.band->high} : Band{1, 0};
}
Band normal_below_half(const LedgerReport& report) {  // P(|x| < 0.5) for N(0, 1)
  const double p = std::erf(0.5 / std::sqrt(2.0)),
               spread = kStandardErrors * std::sqrt(p * (1 - p) / report.numbers.elements);
  return {p - spread, p + spread};
}

const Scene kScenes[] = {
    {"relative_gaussian(strength=0.05)", at::kBFloat16, "realised strength", strength_of, strength_band},
    {"deadzone(threshold=0.5, relative_to=none)", at::kFloat, "share zeroed", zeroed_share, normal_below_half},
    {"bitflip(field=exponent, count=16)", at::kHalf, "elements changed", changed_count,
     [](const LedgerReport&) { return Band{16, 16}; }},
    {"quantize(format=mxfp4)", at::kFloat, "SQNR in dB", sqnr_of,
     [](const LedgerReport&) { return Band{18.69, 18.89}; }},
    {"quantize(format=nvfp4)", at::kFloat, "SQNR in dB", sqnr_of,
     [](const LedgerReport&) { return Band{20.33, 20.53}; }},
};

struct Played {
  LedgerReport report;
  double value = 0;
  Band band = {};
  bool met = false;
};

Played play(const Scene& scene, const at::Device& device, uint64_t seed) {
  const Rule rule = parse_rule(scene.fault, RuleUse::kOnTensor);
  const at::Tensor x = gaussian_tensor({{kRows, kColumns}, scene.dtype, 0, 1, seed}).to(device);
  const at::Tensor ledger = make_ledger(device);
  check_visible(rule, dtype_of(x));
  apply_(x, rule, {seed, "demo", 0}, {}, {{}, ledger, {}});
  Played played{make_report(rule, dtype_of(x), ledger)};
  played.value = scene.value(played.report.numbers);
  played.band = scene.expected(played.report);
  played.met = played.report.complaints.empty() && played.value >= played.band.low && played.value <= played.band.high;
  return played;
}

void print_scene(const Scene& scene, const Played& played) {
  const LedgerNumbers& n = played.report.numbers;
  print(fmt::format("{}  on {} {}\n", styled(Style::kHeading, scene.fault), c10::toString(scene.dtype), "N(0, 1)"));
  print(fmt::format("  changed {}, survival {:.4g} %, rms e {}, max |e| {}, SQNR {}\n",
                    share_text(n.changed, n.elements), 100 * n.survival, number_text(n.rms_error),
                    number_text(n.max_abs_error), n.sqnr_db ? fmt::format("{:.2f} dB", *n.sqnr_db) : "-"));
  print(fmt::format("  {} {}, expected {} to {}: {}\n", scene.measure, number_text(played.value),
                    number_text(played.band.low), number_text(played.band.high),
                    played.met ? styled(Style::kGood, "ok") : styled(Style::kBad, "NOT MET")));
}

ExitCode demo(const Globals& globals) {
  const at::Device device = open_device(globals.device);
  auto json = nlohmann::ordered_json::array();
  std::vector<std::string> missed;
  for (const Scene& scene : kScenes) {
    const Played played = play(scene, device, globals.seed());
    if (!played.met) missed.push_back(scene.fault);
    if (!globals.json) print_scene(scene, played);
    auto entry = report_json(played.report);
    entry["measure"] = scene.measure;
    entry["value"] = played.value;
    entry["expected"] = {played.band.low, played.band.high};
    entry["met"] = played.met;
    json.push_back(std::move(entry));
  }
  if (globals.json)
    print_json({{"command", "demo"}, {"seed", globals.seed()}, {"device", device.str()}, {"scenes", json}});
  if (!missed.empty()) throw EvidenceError("the realised strength is not the expected one: " + joined(missed, "; "));
  if (!globals.json && !globals.quiet) {
    print(fmt::format("\nAll five did what was asked, counted in the same pass. Replay: faultline demo --seed {}\n",
                      globals.seed()));
  }
  return ExitCode::kOk;
}

}  // namespace

void add_demo(CLI::App& app, const Globals& globals, Run& run) {
  CLI::App* command = app.add_subcommand(
      "demo", "three faults and two number formats at work; exits 3 if one is not as strong as asked");
  command->footer(
      "Examples:\n  faultline demo\n  faultline demo --seed 7 --json\n\nGlobal options: see `faultline --help`.");
  command->callback([&run, &globals] { run = [&globals] { return demo(globals); }; });
}

}  // namespace faultline::cli
