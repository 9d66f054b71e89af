#include "diagnose/campaign.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace faultline {
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

template <typename Item, typename Test>
std::vector<const Item*> chosen(const std::vector<Item>& items, const Test& test) {
  std::vector<const Item*> found;
  for (const Item& item : items)
    if (test(item)) found.push_back(&item);
  return found;
}

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
    for (const std::string& pool : pools)
      cells.push_back({kind + " | " + pool, spec.trials + (may_change_nothing(kind) ? spec.trials / 10 : 0)});
  // A round that was interrupted is a sample of the cells, not their beginning.
  std::sort(cells.begin(), cells.end(), [](const auto& a, const auto& b) { return hash64(a.name) < hash64(b.name); });
  cells.push_back({"healthy", spec.healthy});
  if (!spec.grid.rare.empty()) cells.push_back({"intermittent", spec.rare});
  for (const std::string& kind : kinds_of(spec.grid.fading)) cells.push_back({"curve " + kind, spec.fading});
  return cells;
}

Planned planned_trial(const CampaignSpec& spec, const TrialKey& key, int64_t layers) {
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

std::vector<TrialKey> pending_trials(const CampaignSpec& spec, CampaignStore& store) {
  struct Due {
    // Its place in its cell, 0 to 1: cells of every size advance together. What bounds a rate near zero needs all its
    // runs and is done at half time: healthy machines.
    double when;
    TrialKey key;
  };
  std::vector<Due> due;
  for (const CampaignCell& cell : campaign_cells(spec)) {
    const double pace = static_cast<double>(cell.trials) * (cell.name == "healthy" ? 2 : 1);
    for (TrialKey& key : store.pending({cell.name}, cell.trials))
      due.push_back({(static_cast<double>(key.index) + 0.5) / pace, std::move(key)});
  }
  std::stable_sort(due.begin(), due.end(), [](const Due& a, const Due& b) { return a.when < b.when; });
  std::vector<TrialKey> keys;
  for (Due& one : due) keys.push_back(std::move(one.key));
  return keys;
}

void check_campaign(CampaignStore& store, const std::string& fingerprint) {
  store.for_each([&](Trial&& trial) {
    if (trial.fingerprint != fingerprint)
      throw UsageError(
          "the store holds trials of another campaign (model, its weights, type, device, seed, methods, tokens or "
          "preset differ); choose another store, or give the options that it was begun with");
  });
}

CampaignEnd run_campaign(TrialExecutor& executor, const CampaignSpec& spec, const std::string& fingerprint,
                         CampaignStore& store, const CampaignRun& options) {
  check_campaign(store, fingerprint);
  const std::vector<TrialKey> keys = pending_trials(spec, store);
  const auto start = std::chrono::steady_clock::now();
  std::size_t given = 0;
  CampaignEnd end;
  const auto next = [&]() -> std::optional<TrialKey> {
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (given == keys.size() || (options.time_limit > 0 && passed > options.time_limit)) return std::nullopt;
    return keys[given++];
  };
  const auto done = [&](Trial&& trial) {
    trial.fingerprint = fingerprint;
    (void)store.insert(trial);  // another process may have been there first
    ++end.done;
    if (options.progress) options.progress(end.done, std::ssize(keys));
  };
  const auto failed = [&](const TrialKey& key, const std::string& sentence) {
    end.failures.push_back(fmt::format("{} #{}: {}", key.cell, key.index, sentence));
  };
  executor.run(next, done, failed);
  end.left = std::ssize(keys) - end.done;
  return end;
}

}  // namespace faultline
