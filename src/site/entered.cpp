#include "site/entered.h"

#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace faultline::site {
namespace {

constexpr std::size_t kBlock = 4096, kBlocks = 4096;  // places a block; blocks (2^24 places, as row keys have)
using Block = std::array<std::array<std::atomic<int64_t>, kPhases * kForwardKinds>, kBlock>;

struct Entries {
  std::mutex mutex;
  std::array<std::atomic<Block*>, kBlocks> blocks{};
  std::array<std::array<std::atomic<int64_t>, kPhases>, kMostRules> outside{};
  std::map<PlaceId, KnownModule> known;
};
Entries& all_entries() {
  static auto* all = new Entries;
  return *all;
}

Block* block_of(PlaceId place, bool make) {
  Entries& all = all_entries();
  FL_ASSERT(place < kBlock * kBlocks);
  std::atomic<Block*>& slot = all.blocks[place / kBlock];
  Block* block = slot.load(std::memory_order_acquire);
  if (block != nullptr || !make) return block;
  const std::lock_guard<std::mutex> lock(all.mutex);
  block = slot.load(std::memory_order_acquire);
  if (block == nullptr) slot.store(block = new Block{}, std::memory_order_release);  // as places, for good
  return block;
}

std::size_t column(Phase phase, ForwardKind kind) {
  return static_cast<std::size_t>(phase) * kForwardKinds + static_cast<std::size_t>(kind);
}

bool was_entered_inside(const std::string& path, Phase phase, ForwardKind kind) {
  const std::string prefix = path.empty() ? "" : path + ".";
  const PlaceId count = place_count();
  for (PlaceId place = 1; place < count; ++place) {
    const std::string& inner = place_of(place).path;
    if (inner.size() > prefix.size() && inner.starts_with(prefix) && entries_of(place, phase, kind) > 0) return true;
  }
  return false;
}

bool was_entered(PlaceId place, Phase phase) {
  for (int k = 0; k < kForwardKinds; ++k) {
    if (entries_of(place, phase, static_cast<ForwardKind>(k)) > 0) return true;
  }
  return false;
}

std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

}  // namespace

std::atomic<bool> detail::counts_entries{false};

void detail::add_entries(PlaceId place, Phase phase, ForwardKind kind, int64_t count) {
  (*block_of(place, true))[place % kBlock][column(phase, kind)].fetch_add(count, std::memory_order_relaxed);
}

void begin_counting_entries() {
  for (auto& slot : all_entries().blocks) {
    if (Block* block = slot.load(std::memory_order_acquire)) {
      for (auto& place : *block)
        for (auto& count : place) count.store(0, std::memory_order_relaxed);
    }
  }
  for (auto& phases : all_entries().outside)
    for (auto& count : phases) count.store(0, std::memory_order_relaxed);
  detail::counts_entries = true;
}
void pause_counting_entries(bool paused) { detail::counts_entries = !paused; }

int64_t entries_of(PlaceId place, Phase phase, ForwardKind kind) {
  Block* block = block_of(place, false);
  return block == nullptr ? 0 : (*block)[place % kBlock][column(phase, kind)].load();
}
bool any_entries(Phase phase) {
  const PlaceId count = place_count();
  for (PlaceId place = 0; place < count; ++place) {
    if (was_entered(place, phase)) return true;
  }
  return false;
}

void note_outside(std::size_t rule, Phase phase) {
  if (detail::counts_entries.load(std::memory_order_relaxed))
    all_entries().outside.at(rule)[static_cast<std::size_t>(phase)].fetch_add(1, std::memory_order_relaxed);
}
int64_t calls_outside(std::size_t rule, Phase phase) {
  return all_entries().outside.at(rule)[static_cast<std::size_t>(phase)].load();
}

void know_module(PlaceId place, const KnownModule& module) {
  const std::lock_guard<std::mutex> lock(all_entries().mutex);
  all_entries().known.insert_or_assign(place, module);
}
void forget_modules() {
  const std::lock_guard<std::mutex> lock(all_entries().mutex);
  all_entries().known.clear();
}
std::vector<std::pair<PlaceId, KnownModule>> known_modules() {
  const std::lock_guard<std::mutex> lock(all_entries().mutex);
  return {all_entries().known.begin(), all_entries().known.end()};
}

std::optional<Entry> entry_around(PlaceId place, const KnownModule& module, Phase phase, ForwardKind kind) {
  if (const int64_t count = entries_of(place, phase, kind); count > 0) return Entry{place, count};
  const std::string& path = place_of(place).path;
  for (std::string around = path; !around.empty();) {
    around = parent_of(around);
    const PlaceId outer = place_id(around);
    const int64_t count = entries_of(outer, phase, kind);
    if (count == 0) continue;
    // It runs inside of one that shows nothing of its inside (compiled, fused), and where its own parent runs, unless
    // that calls it in forwards of another kind only. A part of it that was entered shows that it has run, though
    // somebody took its hooks.
    const bool ran = module.is_compiled || !was_entered_inside(around, phase, kind) ||
                     was_entered_inside(path, phase, kind) || (around == parent_of(path) && !was_entered(place, phase));
    return ran ? std::optional(Entry{outer, count}) : std::nullopt;
  }
  return {};
}

}  // namespace faultline::site
