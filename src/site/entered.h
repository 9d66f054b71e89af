// How often each place was entered, by phase and kind of forward, while a plan is armed: a module that ran must have
// left the calls that its rule promises (tap/partial.h). Kept here, beside the scopes, because every push passes.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "site/forward.h"
#include "site/scope.h"

namespace faultline::site {

void begin_counting_entries();  // from zero
// Stops and resumes, for what runs and does not belong to the run (warm-up, profiling).
void pause_counting_entries(bool paused);

namespace detail {
extern std::atomic<bool> counts_entries;
void add_entries(PlaceId place, Phase phase, ForwardKind kind, int64_t count);
}  // namespace detail

inline void note_entry(PlaceId place, Phase phase, ForwardKind kind) {
  if (detail::counts_entries.load(std::memory_order_relaxed)) detail::add_entries(place, phase, kind, 1);
}
// One that an exception ended before its end: what it promises need not have happened.
inline void forget_entry(PlaceId place, Phase phase, ForwardKind kind) {
  if (detail::counts_entries.load(std::memory_order_relaxed)) detail::add_entries(place, phase, kind, -1);
}
void abandon_scope();    // pop_scope of such a one
bool is_inside_scope();  // of this thread
int64_t entries_of(PlaceId place, Phase phase, ForwardKind kind);
bool any_entries(Phase phase);

// Calls of a rule (by its number) that ran outside of every scope: they are nobody's whom a model holds.
inline constexpr std::size_t kMostRules = 64;
void note_outside(std::size_t rule, Phase phase);
int64_t calls_outside(std::size_t rule, Phase phase);

// A module of a model, as a client that knows the modules says.
struct KnownModule {
  int64_t products = 0;      // with weights of its own, in one call, at least
  bool is_compiled = false;  // it runs in code that shows nothing of its inside, at times
  bool is_trained = false;   // its weights have gradients
  int64_t biases = 0;        // that these products add
};
void know_module(PlaceId place, const KnownModule& module);
void forget_modules();
std::vector<std::pair<PlaceId, KnownModule>> known_modules();

// The module must have been called: by its own entries, else by those of the nearest place around it that was entered.
// Nothing where it simply did not run: others inside that place did, and it is no child of that place's own.
struct Entry {
  PlaceId place;
  int64_t count;
};
std::optional<Entry> entry_around(PlaceId place, const KnownModule& module, Phase phase, ForwardKind kind);

}  // namespace faultline::site
