#include "diagnose/campaign/campaign_trial.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/machine.h"
#include "base/text.h"
#include "model/build.h"
#include "record/manifest.h"
#include "site/scope.h"
#include "trials/runner.h"

namespace faultline::diagnose {
namespace {

constexpr int kSeedsTried = 700;  // a mask of 1 % of the channels holds the largest in one of a hundred
constexpr double kNearlyTheLargest = 0.99;
constexpr int64_t kPassesForSparseSpikes = 16;
constexpr int64_t kPrompts = 64;
constexpr std::array<const char*, 4> kHealthyTypes = {"", "fp16", "", "fp32"};  // "": the machine's own
constexpr std::array<int64_t, 3> kHealthyRows = {1, 2, 5};

at::ScalarType type_named(const std::string& name) {
  return name == "fp32" ? at::kFloat : name == "fp16" ? at::kHalf : at::kBFloat16;
}

std::string place_of_trial(const Planned& planned) {
  if (!planned.site->in_a_layer) return planned.site->place;
  return fmt::format("model.layers.{}{}{}", planned.layer, planned.site->place.empty() ? "" : ".", planned.site->place);
}

// What a clean machine brings to a layer, and what a fault of that layer, which is armed for it, does there.
at::Tensor clean_input(const model::CausalLm& model, const at::Tensor& tokens, int64_t layer) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kDiagnose);
  at::Tensor x = model.embed(tokens.reshape(-1));
  for (int64_t i = 0; i < layer; ++i) x = model.run_layer(i, x, tokens.size(0));
  return x;
}
Planted effect_of(const model::CausalLm& model, lab::Injection& injection, const at::Tensor& x, int64_t layer,
                  int64_t rows) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kDiagnose);
  injection.arm();
  model.run_layer(layer, x, rows);
  return planted_by(injection.plan());
}

// Trials of one campaign are counted together: they must be of one model.
void check_weights(model::CausalLm& model, const CampaignMachine& machine) {
  const std::string here = model::weights_fingerprint(model);
  if (here != machine.weights)
    throw UsageError(fmt::format(
        "{}: model '{}' has other weights there than where the campaign was started (fingerprints {} and {}); give "
        "every machine the same model under that name",
        record::host_description().at("name").get<std::string>(), machine.model, here, machine.weights));
}

double rounded(double value) { return std::round(value * 1000) / 1000; }

// layer -1: the fault lies outside the layers, where a place takes the part of a layer.
Json said(const Diagnosis& diagnosis, const std::string& place, int64_t layer, const std::string& kind) {
  Json json = {{"found", diagnosis.fault_found()},
               {"candidates", std::ssize(diagnosis.candidates)},
               {"seconds", rounded(diagnosis.seconds)},
               {"forwards", rounded(diagnosis.forwards)},
               {"layer_forwards", rounded(diagnosis.layer_forwards)},
               {"passes", diagnosis.passes}};
  if (!diagnosis.fault_found()) return json;
  const Candidate& first = diagnosis.candidates.front();
  json["place"] = first.place, json["operation"] = first.operation, json["kind"] = first.kind;
  if (place.empty()) return json;
  const auto is_there = [&](const Candidate& one) { return one.layer == layer && (layer >= 0 || one.place == place); };
  json["layer_right"] = is_there(first);
  json["place_right"] = first.place == place;
  json["kind_right"] = first.kind == kind;
  json["layer_in_three"] =
      std::any_of(diagnosis.candidates.begin(),
                  diagnosis.candidates.begin() + std::min<int64_t>(3, std::ssize(diagnosis.candidates)), is_there);
  json["other_layers"] = std::count_if(diagnosis.candidates.begin(), diagnosis.candidates.end(),
                                       [&](const Candidate& one) { return !is_there(one); });
  return json;
}

}  // namespace

TrialBench::TrialBench(CampaignMachine machine, CampaignSpec spec)
    : machine_(std::move(machine)), spec_(std::move(spec)) {
  if (!machine_.weights.empty()) check_weights(*model(machine_.dtype).loaded.model, machine_);
}

TrialBench::Model& TrialBench::model(const std::string& name) {
  const auto found = models_.find(name);
  if (found != models_.end()) return found->second;
  lab::LoadOptions load;
  load.dtype = type_named(name), load.device = at::Device(machine_.device);
  Model& made = models_.try_emplace(name, Model{lab::load_model(machine_.model, load), nullptr, {}, {}}).first->second;
  model::CausalLm& model = *made.loaded.model;
  const bool keep = name == machine_.dtype;
  // With the plan paused the machine under test is a clean one, and may compute the reference too.
  made.examiner = std::make_unique<Examiner>(model, load.device, spec_.seed, keep);
  made.censuses = lab::take_censuses(model, site::Phase::kDiagnose, 1);
  made.prompts = lab::example_prompts(made.loaded, kPrompts, spec_.seed);
  return made;
}

at::Tensor TrialBench::prompt(const Model& model, uint64_t seed, int64_t rows) const {
  const int64_t least = std::max<int64_t>(1, spec_.tokens / 2);
  int64_t length = least + static_cast<int64_t>(mix64(seed, 5) % static_cast<uint64_t>(spec_.tokens - least + 1));
  std::vector<at::Tensor> chosen;
  for (int64_t i = 0; i < rows; ++i) {
    chosen.push_back(model.prompts[mix64(seed, 100 + static_cast<uint64_t>(i)) % model.prompts.size()]);
    length = std::min(length, chosen.back().size(1));
  }
  for (at::Tensor& one : chosen) one = one.narrow(1, 0, length);
  return at::cat(chosen, 0);
}

// Of what the site gives on a clean machine: an offset of one standard deviation has it as its mean error.
double TrialBench::spread(Model& model, const Planned& planned) {
  const std::string path = place_of_trial(planned);
  const auto found = spreads_.find(path);
  if (found != spreads_.end()) return found->second;
  const std::string text = fmt::format("offset(strength=1) @ {},layer={}", planned.site->where, planned.layer);
  const Node recipe = recipe::recipe_of_rules({numeric::parse_rule(text, numeric::RuleUse::kInPlan)}, 0);
  lab::Injection probe(recipe::read_plan_spec(recipe), *model.loaded.model, site::Phase::kDiagnose,
                       [&] { return model.censuses; });
  const at::Tensor& first = model.prompts[0];
  const at::Tensor x =
      clean_input(*model.loaded.model, first.narrow(1, 0, std::min<int64_t>(16, first.size(1))), planned.layer);
  const double size = effect_of(*model.loaded.model, probe, x, planned.layer, 1).mean_error;
  probe.disarm();
  return spreads_[path] = size;
}

std::unique_ptr<lab::Injection> TrialBench::plant(Model& model, const Planned& planned, uint64_t seed) {
  std::string what = planned.entry->what;
  if (const std::size_t at = what.find("{spread}"); at != std::string::npos)
    what.replace(at, 8, fmt::format("{:.3g}", std::max(planned.entry->strength * spread(model, planned), 1e-12)));
  if (planned.extent < 1) what += fmt::format(", extent.fraction={:g}, extent.structure=channel", planned.extent);
  const std::string layer = planned.site->in_a_layer ? fmt::format(",layer={}", planned.layer) : "";
  const std::string text = fmt::format("{}) @ {}{}", what, planned.site->where, layer);
  const Node recipe = recipe::recipe_of_rules({numeric::parse_rule(text, numeric::RuleUse::kInPlan)}, seed);
  return std::make_unique<lab::Injection>(recipe::read_plan_spec(recipe), *model.loaded.model, site::Phase::kDiagnose,
                                          [&] { return model.censuses; });
}

std::unique_ptr<lab::Injection> TrialBench::plant_what_acts(Model& model, const Planned& planned,
                                                            const at::Tensor& tokens, uint64_t seed) {
  if (planned.rare || !planned.entry->dtype.empty()) {  // the ledger says afterwards whether it acted
    std::unique_ptr<lab::Injection> injection = plant(model, planned, mix64(seed, 100));
    injection->arm();
    return injection;
  }
  const at::Tensor x = clean_input(*model.loaded.model, tokens, planned.layer);
  const auto effect = [&](lab::Injection& one) {
    return effect_of(*model.loaded.model, one, x, planned.layer, tokens.size(0));
  };
  double wanted = 0;  // a range that is too small is one for the largest channel: a mask must hold that one
  if (planned.entry->kind == "saturate" && planned.extent < 1) {
    Planned dense = planned;
    dense.extent = 1;
    const std::unique_ptr<lab::Injection> everywhere = plant(model, dense, seed);
    wanted = kNearlyTheLargest * effect(*everywhere).largest_error;
    everywhere->disarm();
  }
  for (int i = 0; i < kSeedsTried; ++i) {
    std::unique_ptr<lab::Injection> injection = plant(model, planned, mix64(seed, 100 + static_cast<uint64_t>(i)));
    const Planted done = effect(*injection);
    if (done.changed > 0 && done.largest_error >= wanted) return injection;
    injection->disarm();
  }
  return nullptr;
}

record::Trial TrialBench::run(const record::TrialKey& key) {
  record::Trial trial;
  trial.key = key;
  trial.seed = mix64(mix64(spec_.seed, hash64(key.cell)), static_cast<uint64_t>(key.index));
  trial.started = system_seconds();
  const bool healthy = key.cell == "healthy";
  const auto index = static_cast<std::size_t>(key.index);
  Planned planned = planned_trial(spec_, key, this->model(machine_.dtype).loaded.model->config().layers);
  const std::string asked = healthy ? kHealthyTypes[index % kHealthyTypes.size()] : planned.entry->dtype;
  const std::string dtype = asked.empty() ? machine_.dtype : asked;
  Model& model = this->model(dtype);
  const int64_t rows = healthy ? kHealthyRows[index / kHealthyTypes.size() % kHealthyRows.size()] : 1;
  if (!healthy && !planned.site->in_a_layer) planned.layer = -1;
  const at::Tensor tokens = prompt(model, mix64(trial.seed, 2), rows);
  trial.outcome = {{"tokens", tokens.size(1)}, {"rows", rows}, {"dtype", dtype}};
  std::unique_ptr<lab::Injection> injection;
  std::string place, kind;
  if (!healthy) {
    place = place_of_trial(planned), kind = planned.entry->kind;
    trial.outcome.update({{"fault", planned.entry->name},
                          {"planted_kind", kind},
                          {"strength", planned.entry->strength},
                          {"extent", planned.extent},
                          {"site", planned.site->name},
                          {"pool", planned.site->pool},
                          {"layer", planned.layer},
                          {"planted_place", place}});
    injection = plant_what_acts(model, planned, tokens, trial.seed);
    if (!injection) {
      trial.outcome["inactive"] = true;
      trial.finished = system_seconds();
      return trial;  // status error: it leaves the denominator
    }
  }
  const bool sparse_spike = kind == "spike" && planned.extent < 1;  // acts in few calls only
  const int64_t passes = planned.rare   ? kPassesForRare
                         : sparse_spike ? kPassesForSparseSpikes
                         : healthy      ? 1
                                        : planned.entry->passes;
  const bool of_a_layer = !healthy && !planned.entry->dtype.empty();  // a flip is right where the layer is
  bool right = true;
  Planted done = injection ? planted_by(injection->plan()) : Planted{};
  for (const std::string& method : spec_.methods) {
    if (planned.rare && method == "classic") continue;  // it has no passes
    const Diagnosis diagnosis = model.examiner->run({method, tokens, mix64(trial.seed, 3), passes});
    Json& answer = trial.outcome[method] = said(diagnosis, place, planned.layer, kind);
    if (injection) {  // a fault that acts by chance may have left this method's calls alone
      const int64_t before = std::exchange(done, planted_by(injection->plan())).changed;
      answer["changed"] = done.changed - before;
    }
    if (method == "classic" || !ran_under_fault(answer)) continue;
    right &= healthy      ? !diagnosis.fault_found()
             : of_a_layer ? answer.value("layer_right", false) && answer.value("other_layers", 1) == 0
                          : answer.value("place_right", false);
  }
  if (injection) {
    injection->disarm();
    trial.evidence = {{"changed", done.changed}, {"calls", done.calls}};
    if (done.changed == 0) trial.outcome["inactive"] = true;
  }
  trial.status = trial.outcome.value("inactive", false) ? record::TrialStatus::kError
                 : right                                ? record::TrialStatus::kPass
                                                        : record::TrialStatus::kFail;
  trial.finished = system_seconds();
  return trial;
}

std::string TrialServer::answer(const std::string& line) {
  if (!campaign_) {
    campaign_ = campaign_from_request(parse_json_text(line, "the campaign"));
    if (prepare_) prepare_(campaign_->first);
    return "";
  }
  try {
    const record::TrialKey key = trials::trial_of(line);
    if (!bench_) bench_ = std::make_unique<TrialBench>(campaign_->first, campaign_->second);
    return to_json_text(to_record(bench_->run(key)));
  } catch (const std::exception& error) {
    bench_.reset();  // whatever it left behind
    return to_json_text({{"error", error.what()}});
  }
}

}  // namespace faultline::diagnose
