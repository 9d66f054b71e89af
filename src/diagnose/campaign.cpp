#include "diagnose/campaign.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "base/text.h"
#include "lab/injection.h"
#include "record/clock.h"
#include "task/task.h"

namespace faultline {
namespace {

constexpr int kSeedsTried = 16;
constexpr int64_t kPassesForRare = 16;
constexpr int64_t kPrompts = 64;

struct Cell {
  std::string name;
  const FaultGrid::Entry* entry = nullptr;  // null: healthy
  const FaultGrid::Site* site = nullptr;
  double extent = 1;
};

std::vector<Cell> cells_of(const FaultGrid& grid) {
  std::vector<Cell> cells;
  for (const FaultGrid::Entry& entry : grid.entries)
    for (const double extent : grid.extents)
      for (const FaultGrid::Site& site : grid.sites)
        cells.push_back({fmt::format("{} | {:g} | {}", entry.name, extent, site.name), &entry, &site, extent});
  // An interrupted round is a sample of the cells, not their beginning.
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return hash64(a.name) < hash64(b.name); });
  return cells;
}

class Campaign {
 public:
  Campaign(LoadedModel& loaded, const CampaignSpec& spec)
      : loaded_(loaded),
        spec_(spec),
        examiner_(*loaded.model, spec.reference, spec.seed, /*keep=*/true),
        censuses_(take_censuses(*loaded.model, Phase::kDiagnose, 1)) {
    for (const Problem& problem : arithmetic("test", kPrompts, {spec.seed, 2})) {
      std::vector<int64_t> tokens = loaded.tokenizer.encode(problem.question);
      prompts_.push_back(at::tensor(tokens, at::kLong).unsqueeze(0).to(loaded.model->device()));
    }
  }

  Trial run(const Cell& cell, int64_t index);

 private:
  at::Tensor prompt(uint64_t seed) const {
    const at::Tensor& whole = prompts_[seed % prompts_.size()];
    const auto least = std::min<int64_t>(4, spec_.tokens);
    const auto length = least + static_cast<int64_t>(mix64(seed, 5) % static_cast<uint64_t>(spec_.tokens - least + 1));
    return whole.narrow(1, 0, std::min(length, whole.size(1)));
  }
  double spread(const Cell& cell, int64_t layer);
  std::unique_ptr<Injection> plant(const Cell& cell, int64_t layer, uint64_t seed);
  bool acts(Injection& injection, const at::Tensor& tokens) const;
  Json said(const Diagnosis& diagnosis, const std::string& place, int64_t layer, const std::string& kind) const;

  LoadedModel& loaded_;
  const CampaignSpec& spec_;
  Examiner examiner_;
  Censuses censuses_;
  std::vector<at::Tensor> prompts_;
  std::map<std::string, double> spreads_;
};

// Of what the site gives on a clean machine, rounded to two digits.
double Campaign::spread(const Cell& cell, int64_t layer) {
  const std::string path =
      fmt::format("model.layers.{}{}{}", layer, cell.site->place.empty() ? "" : ".", cell.site->place);
  const auto found = spreads_.find(path);
  if (found != spreads_.end()) return found->second;
  const std::unique_ptr<Injection> probe = [&] {
    const std::string text = fmt::format("offset(strength=1) @ {},layer={}", cell.site->where, layer);
    return std::make_unique<Injection>(std::vector<Rule>{parse_rule(text, RuleUse::kInPlan)}, PlanSettings{},
                                       *loaded_.model, Phase::kDiagnose, censuses_);
  }();
  probe->arm();  // an offset of one standard deviation: its mean error is that deviation
  acts(*probe, prompts_[0].narrow(1, 0, std::min<int64_t>(16, prompts_[0].size(1))));
  probe->disarm();
  double size = 0;
  for (const Plan::Evidence& evidence : probe->plan().read_evidence())
    size = std::max(size, evidence.numbers.mean_abs_error);
  return spreads_[path] = size;
}

std::unique_ptr<Injection> Campaign::plant(const Cell& cell, int64_t layer, uint64_t seed) {
  std::string what = cell.entry->what;
  if (const std::size_t at = what.find("{spread}"); at != std::string::npos)
    what.replace(at, 8, fmt::format("{:.3g}", std::max(0.01 * spread(cell, layer), 1e-12)));
  if (cell.extent < 1) what += fmt::format(", extent.fraction={:g}, extent.structure=channel", cell.extent);
  const std::string text = fmt::format("{}) @ {},layer={}", what, cell.site->where, layer);
  PlanSettings settings;
  settings.seed = seed;
  return std::make_unique<Injection>(std::vector<Rule>{parse_rule(text, RuleUse::kInPlan)}, settings, *loaded_.model,
                                     Phase::kDiagnose, censuses_);
}

bool Campaign::acts(Injection& injection, const at::Tensor& tokens) const {
  const at::NoGradGuard no_gradients;
  const PhaseGuard phase(Phase::kDiagnose);
  loaded_.model->hidden_states(tokens);
  return planted_by(injection.plan()).changed > 0;
}

Json Campaign::said(const Diagnosis& diagnosis, const std::string& place, int64_t layer,
                    const std::string& kind) const {
  Json json = {{"found", diagnosis.fault_found()},
               {"candidates", std::ssize(diagnosis.candidates)},
               {"seconds", diagnosis.seconds},
               {"forwards", diagnosis.forwards}};
  if (!diagnosis.fault_found()) return json;
  const Candidate& first = diagnosis.candidates.front();
  json["place"] = first.place, json["operation"] = first.operation, json["kind"] = first.kind;
  json["layer_right"] = first.layer == layer;
  json["place_right"] = first.place == place;
  json["kind_right"] = first.kind == kind;
  json["layer_in_three"] =
      std::any_of(diagnosis.candidates.begin(),
                  diagnosis.candidates.begin() + std::min<int64_t>(3, std::ssize(diagnosis.candidates)),
                  [&](const Candidate& one) { return one.layer == layer; });
  json["other_layers"] = std::count_if(diagnosis.candidates.begin(), diagnosis.candidates.end(),
                                       [&](const Candidate& one) { return one.layer != layer; });
  return json;
}

Trial Campaign::run(const Cell& cell, int64_t index) {
  Trial trial;
  trial.key = {cell.name, index};
  trial.seed = mix64(mix64(spec_.seed, hash64(cell.name)), static_cast<uint64_t>(index));
  trial.started = system_seconds();
  const auto layers = static_cast<uint64_t>(loaded_.model->config().layers);
  const auto layer = static_cast<int64_t>(mix64(trial.seed, 1) % layers);
  const at::Tensor tokens = prompt(mix64(trial.seed, 2));
  std::unique_ptr<Injection> injection;
  std::string place, kind;
  if (cell.entry != nullptr) {
    place = fmt::format("model.layers.{}{}{}", layer, cell.site->place.empty() ? "" : ".", cell.site->place);
    kind = cell.entry->kind;
    for (int i = 0; i < kSeedsTried; ++i) {
      injection = plant(cell, layer, mix64(trial.seed, 100 + static_cast<uint64_t>(i)));
      injection->arm();
      if (acts(*injection, tokens)) break;
      injection.reset();
    }
    if (!injection) {
      trial.outcome = {{"inactive", true}};
      trial.finished = system_seconds();
      return trial;  // an error: it leaves the denominator
    }
    trial.evidence = {{"changed", planted_by(injection->plan()).changed}};
  }
  trial.outcome = {{"layer", layer}, {"tokens", tokens.numel()}, {"planted_place", place}, {"planted_kind", kind}};
  if (cell.entry != nullptr) trial.outcome["pool"] = cell.site->pool, trial.outcome["extent"] = cell.extent;
  bool right = true;
  const int64_t passes = kind == "spike" && cell.extent < 1 ? kPassesForRare : 1;  // it acts in few calls only
  for (const std::string& method : spec_.methods) {
    const Diagnosis diagnosis = examiner_.run({method, tokens, mix64(trial.seed, 3), passes});
    trial.outcome[method] = said(diagnosis, place, layer, kind);
    right &= cell.entry == nullptr ? !diagnosis.fault_found() : trial.outcome[method].value("place_right", false);
  }
  trial.status = right ? TrialStatus::kPass : TrialStatus::kFail;
  trial.finished = system_seconds();
  return trial;
}

}  // namespace

void run_campaign(LoadedModel& loaded, const CampaignSpec& spec, CampaignStore& store,
                  const std::function<void(int64_t, int64_t)>& progress) {
  Campaign campaign(loaded, spec);
  const std::vector<Cell> cells = cells_of(spec.grid);
  std::map<std::string, Cell> by_name;
  by_name["healthy"] = {"healthy", nullptr, nullptr, 1};
  std::vector<std::string> names;
  for (const Cell& cell : cells) by_name[cell.name] = cell, names.push_back(cell.name);
  std::vector<TrialKey> pending = store.pending(names, spec.trials);
  const std::vector<TrialKey> healthy = store.pending({"healthy"}, spec.healthy);
  // Healthy trials are spread evenly among the others.
  std::vector<TrialKey> all;
  const std::size_t total = pending.size() + healthy.size();
  for (std::size_t i = 0, p = 0, h = 0; i < total; ++i)
    all.push_back(h * total < (i + 1) * healthy.size() && h < healthy.size() ? healthy[h++]
                  : p < pending.size()                                       ? pending[p++]
                                                                             : healthy[h++]);
  const auto start = std::chrono::steady_clock::now();
  int64_t done = 0;
  for (const TrialKey& key : all) {
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (spec.seconds > 0 && passed > spec.seconds) break;
    (void)store.insert(campaign.run(by_name.at(key.cell), key.index));
    if (progress) progress(++done, std::ssize(all));
  }
}

}  // namespace faultline
