#include "diagnose/campaign/campaign.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "trials/runner.h"

namespace faultline::diagnose {
namespace {

constexpr int kCampaignRevision = 3;  // of grid and trials: a change makes other trials of the same keys

// The i-th of n things in an order of its own for each round of n.
int64_t drawn(int64_t i, int64_t n, uint64_t seed) {
  std::vector<int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const uint64_t round = mix64(seed, static_cast<uint64_t>(i / n));
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return mix64(round, static_cast<uint64_t>(a)) < mix64(round, static_cast<uint64_t>(b));
  });
  return order[static_cast<std::size_t>(i % n)];
}

std::vector<std::string> kinds_of(const std::vector<FaultGrid::Entry>& entries) {
  std::vector<std::string> kinds;
  for (const FaultGrid::Entry& entry : entries)
    if (std::find(kinds.begin(), kinds.end(), entry.kind) == kinds.end()) kinds.push_back(entry.kind);
  return kinds;
}

// Some saturations reach no value whatever the mask, and some spikes strike while one method looks and not another:
// such trials leave the denominator, and their pools need more of them.
bool may_change_nothing(const std::string& kind) { return kind == "saturate" || kind == "spike"; }

int64_t trials_of_cell(const CampaignSpec& spec, const std::string& kind) {
  if (kind == kExponentFlips) return 8 * spec.trials;
  return spec.trials + (may_change_nothing(kind) ? spec.trials / 10 : 0);
}

template <typename Item, typename Test>
std::vector<const Item*> chosen(const std::vector<Item>& items, const Test& test) {
  std::vector<const Item*> found;
  for (const Item& item : items)
    if (test(item)) found.push_back(&item);
  return found;
}

// A name of ours ("default") stays; a path must mean the same wherever a worker runs.
std::string everywhere(const std::string& model) {
  return std::filesystem::exists(model) ? std::filesystem::absolute(model).string() : model;
}

class CampaignWork : public trials::Work {
 public:
  CampaignWork(const CampaignMachine& machine, const CampaignSpec& spec, record::CampaignStore& store,
               const CampaignRun& options)
      : fingerprint_(campaign_fingerprint(machine, spec)), store_(store), options_(options) {
    check_campaign(store, fingerprint_);
    keys_ = pending_trials(spec, store);
    CampaignMachine anywhere = machine;
    anywhere.model = everywhere(machine.model);
    request_ = to_json_text(campaign_request(anywhere, spec)) + "\n";
  }

  int64_t pending() const { return std::ssize(keys_); }
  CampaignEnd end() {
    end_.left = pending() - end_.done;
    return end_;
  }

  std::optional<record::TrialKey> next() override {
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (given_ == keys_.size() || (options_.time_limit > 0 && passed > options_.time_limit)) return std::nullopt;
    return keys_[given_++];
  }

  trials::Task task(const record::TrialKey&) override {
    trials::Task task;
    task.folder = options_.folder / std::to_string(++tasks_);
    std::filesystem::create_directories(task.folder);
    task.arguments = {"diagnose", "--worker", "--quiet"};
    task.input = request_;
    task.answers = true;
    return task;
  }

  void answered(const record::TrialKey& key, const std::string& line) override {
    const Json answer = parse_json_text(line, "a worker");
    if (answer.is_object() && answer.contains("error")) return note_failure(key, answer["error"].get<std::string>());
    record::Trial trial = trial_from_record(answer, "a worker");
    if (trial.key != key) return note_failure(key, "a worker answered another trial than it was asked for");
    trial.fingerprint = fingerprint_;
    (void)store_.insert(trial);  // another process may have been there first
    ++end_.done;
    if (options_.progress) options_.progress(end_.done, pending());
  }

  void failed(const record::TrialKey& key, const trials::Task& task, const trials::TaskEnd& end) override {
    const std::string words = trials::error_line(task.folder);
    note_failure(key, end.sentence() + (words.empty() ? "" : ": " + words));
  }

 private:
  void note_failure(const record::TrialKey& key, const std::string& sentence) {
    end_.failures.push_back(fmt::format("{} #{}: {}", key.cell, key.index, sentence));
  }

  std::string fingerprint_, request_;
  record::CampaignStore& store_;
  CampaignRun options_;
  std::vector<record::TrialKey> keys_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::size_t given_ = 0;
  int64_t tasks_ = 0;
  CampaignEnd end_;
};

}  // namespace

std::string campaign_fingerprint(const CampaignMachine& machine, const CampaignSpec& spec) {
  const Json identity = {
      {"revision", kCampaignRevision}, {"model", machine.model}, {"weights", machine.weights}, {"dtype", machine.dtype},
      {"device", machine.device},      {"preset", spec.preset},  {"seed", spec.seed},          {"tokens", spec.tokens},
      {"methods", spec.methods}};
  return fmt::format("{:016x}", hash64(to_json_text(identity)));
}

std::vector<CampaignCell> campaign_cells(const CampaignSpec& spec) {
  std::vector<CampaignCell> cells;
  std::vector<std::string> pools;
  for (const FaultGrid::Site& site : spec.grid.sites)
    if (std::find(pools.begin(), pools.end(), site.pool) == pools.end()) pools.push_back(site.pool);
  for (const std::string& kind : kinds_of(spec.grid.entries))
    for (const std::string& pool : pools) cells.push_back({kind + " | " + pool, trials_of_cell(spec, kind)});
  // A round that was interrupted is a sample of the cells, not their beginning.
  std::sort(cells.begin(), cells.end(), [](const auto& a, const auto& b) { return hash64(a.name) < hash64(b.name); });
  cells.push_back({"healthy", spec.healthy});
  if (!spec.grid.rare.empty()) cells.push_back({"intermittent", spec.rare});
  for (const std::string& kind : kinds_of(spec.grid.fading)) cells.push_back({"curve " + kind, spec.fading});
  return cells;
}

Planned planned_trial(const CampaignSpec& spec, const record::TrialKey& key, int64_t layers) {
  Planned planned;
  const uint64_t seed = mix64(spec.seed, hash64(key.cell));
  planned.layer = drawn(key.index, layers, mix64(seed, 1));
  if (key.cell == "healthy") return planned;
  const FaultGrid& grid = spec.grid;
  planned.rare = key.cell == "intermittent", planned.fading = key.cell.starts_with("curve ");
  const std::size_t bar = key.cell.find(" | ");
  const std::string kind = planned.fading ? key.cell.substr(6) : key.cell.substr(0, bar);
  const auto entries = chosen(planned.rare     ? grid.rare
                              : planned.fading ? grid.fading
                                               : grid.entries,
                              [&](const FaultGrid::Entry& one) { return planned.rare || one.kind == kind; });
  const auto sites = chosen(grid.sites, [&](const FaultGrid::Site& one) {
    return bar != std::string::npos ? one.pool == key.cell.substr(bar + 3)
                                    : !planned.fading || one.place.empty() || one.name == "down_proj";
  });
  if (entries.empty() || sites.empty())
    throw UsageError(fmt::format("there is no cell '{}' in this campaign", key.cell));
  const std::vector<double> extents = bar != std::string::npos ? grid.extents : std::vector<double>{1};
  const auto extent_count = std::ssize(extents), site_count = std::ssize(sites);
  const int64_t at = drawn(key.index, std::ssize(entries) * extent_count * site_count, mix64(seed, 2));
  planned.extent = extents[static_cast<std::size_t>(at % extent_count)];
  planned.site = sites[static_cast<std::size_t>(at / extent_count % site_count)];
  planned.entry = entries[static_cast<std::size_t>(at / extent_count / site_count)];
  return planned;
}

std::vector<record::TrialKey> pending_trials(const CampaignSpec& spec, record::CampaignStore& store) {
  struct Due {
    // Its place in its cell, 0 to 1: cells of every size advance together. What bounds a rate near zero needs all its
    // runs and is done at half time: healthy machines.
    double when;
    record::TrialKey key;
  };
  std::vector<Due> due;
  for (const CampaignCell& cell : campaign_cells(spec)) {
    const double pace = static_cast<double>(cell.trials) * (cell.name == "healthy" ? 2 : 1);
    for (record::TrialKey& key : store.pending({cell.name}, cell.trials))
      due.push_back({(static_cast<double>(key.index) + 0.5) / pace, std::move(key)});
  }
  std::stable_sort(due.begin(), due.end(), [](const Due& a, const Due& b) { return a.when < b.when; });
  std::vector<record::TrialKey> keys;
  for (Due& one : due) keys.push_back(std::move(one.key));
  return keys;
}

void check_campaign(record::CampaignStore& store, const std::string& fingerprint) {
  store.for_each([&](record::Trial&& trial) {
    if (trial.fingerprint != fingerprint)
      throw UsageError(
          "the store holds trials of another campaign (model, its weights, type, device, seed, methods, tokens or "
          "preset differ); choose another store, or give the options that it was begun with");
  });
}

CampaignEnd run_campaign(trials::Executor& executor, const CampaignMachine& machine, const CampaignSpec& spec,
                         record::CampaignStore& store, const CampaignRun& options) {
  CampaignWork work(machine, spec, store, options);
  const trials::RunnerEnd end = trials::run(executor, work, work.pending());
  CampaignEnd result = work.end();
  result.interrupted = end.interrupted, result.lost = end.lost;
  return result;
}

namespace {

// A recipe is somebody's; where its store lies is for the command line to say.
std::string check_store(const Node& node) {
  const std::string& name = node.as_string();
  const bool plain =
      name.front() != '.' && name.front() != '-' && name.size() <= 200 &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > ' ' && c != '/' && c < 127; });
  if (plain) return "";
  return fmt::format("{} is no plain name of a file; the folder it lies in is given with --out", describe_text(name));
}

}  // namespace

void register_diagnose_section() {
  const Schema schema =
      Schema::map()
          .field("campaign", Schema::choice({"smoke", "full", "edges"}),
                 {.default_value = Node("smoke"), .doc = "which kinds, extents and sites"})
          .field("methods", Schema::list(Schema::choice({"classic", "self", "shadow"})),
                 {.default_value = Node::list({Node("classic"), Node("self"), Node("shadow")}), .doc = "who diagnoses"})
          .field("trials", Schema::integer({.min = 0}),
                 {.doc = "of each cell; smoke 1, full 300, edges 20 (exponent flips 160)"})
          .field("healthy", Schema::integer({.min = 0}), {.doc = "clean machines; smoke 3, full 1000, edges 120"})
          .field("rare", Schema::integer({.min = 0}),
                 {.doc = "intermittent faults; smoke 1, full 100, edges: in every cell"})
          .field("fading", Schema::integer({.min = 0}), {.doc = "faults of falling strength, each kind; full 60"})
          .field("tokens", Schema::integer({.min = 1, .max = 4096}),
                 {.default_value = Node(24), .doc = "of a prompt, at most"})
          .field("store", Schema::string({.min = 1}).check(check_store),
                 {.default_value = Node("diagnosis.sqlite"), .doc = "the file of its trials, in the folder of --out"});
  SectionRegistry::global().add("diagnose", schema, {.doc = "a campaign: how often each method is right"});
}

CampaignSpec read_campaign(const Node& recipe) {
  const Node& section = recipe.at("diagnose");
  CampaignSpec spec = campaign_spec(section.at("campaign").as_string());
  spec.methods.clear();
  for (const Node& method : section.at("methods").items()) spec.methods.push_back(method.as_string());
  const auto read = [&](const char* name, int64_t& value) {
    if (const Node* given = section.find(name)) value = given->as_integer();
  };
  read("trials", spec.trials), read("healthy", spec.healthy), read("rare", spec.rare), read("fading", spec.fading);
  spec.tokens = section.at("tokens").as_integer();
  spec.seed = static_cast<uint64_t>(recipe.at("seed").as_integer());
  return spec;
}

}  // namespace faultline::diagnose
