#include "race/standing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace faultline::race {
namespace {

using State = Standing::State;

constexpr std::array kStates = {"working", "calling", "waiting", "failed", "silent", "done"};

template <class Belongs>
std::vector<int> ranks_where(const std::vector<Standing>& standings, const Belongs& belongs) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < standings.size(); ++rank)
    if (belongs(standings[rank])) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

std::vector<int> ranks_in(const std::vector<Standing>& standings, State state) {
  return ranks_where(standings, [&](const Standing& standing) { return standing.state == state; });
}

std::vector<int> out_of_step(const std::vector<Standing>& standings) {
  uint64_t least = ~uint64_t{0};
  for (const Standing& standing : standings) least = std::min(least, standing.left_out());
  return ranks_where(standings, [&](const Standing& standing) { return standing.left_out() > least; });
}

// Of the ranks in a state, those that came least far.
std::vector<int> least_far(const std::vector<Standing>& standings, State state) {
  uint64_t least = ~uint64_t{0};
  for (const Standing& standing : standings)
    if (standing.state == state) least = std::min(least, standing.called);
  return ranks_where(standings,
                     [&](const Standing& standing) { return standing.state == state && standing.called == least; });
}

// Those in the call of a collective that another has started and waits in.
std::vector<int> held_up(const std::vector<Standing>& standings) {
  std::vector<int> ranks = least_far(standings, State::kCalling);
  if (ranks.empty()) return ranks;
  const uint64_t called = standings[static_cast<size_t>(ranks.front())].called;
  const bool passed = std::any_of(standings.begin(), standings.end(), [&](const Standing& standing) {
    return standing.state == State::kWaiting && standing.called >= called;
  });
  return passed ? ranks : std::vector<int>{};
}

}  // namespace

const char* state_name(State state) { return kStates[static_cast<size_t>(state)]; }

std::string Standing::text() const { return fmt::format("{}, {} collectives", place, called); }

std::vector<int> to_blame(const std::vector<Standing>& standings) {
  if (standings.size() == 1) return {0};
  if (std::vector<int> ranks = out_of_step(standings); !ranks.empty()) return ranks;
  if (std::vector<int> ranks = ranks_in(standings, State::kFailed); !ranks.empty()) return ranks;
  if (std::vector<int> ranks = ranks_in(standings, State::kSilent); !ranks.empty()) return ranks;
  if (std::vector<int> ranks = least_far(standings, State::kWorking); !ranks.empty()) return ranks;
  return held_up(standings);
}

std::string offence(const Standing& standing) {
  if (standing.left_out() > 0)
    return fmt::format("left out {} of the {} collectives that it came to; it stands in {}", standing.left_out(),
                       standing.reached, standing.place);
  switch (standing.state) {
    case State::kFailed: return fmt::format("failed in {}", standing.text());
    case State::kSilent: return fmt::format("gives no sign of life; last seen in {}", standing.text());
    case State::kCalling:
      return fmt::format("its transport does not return from the call; it is in {}", standing.text());
    default: return fmt::format("did not come; it is in {}", standing.text());
  }
}

Json to_json(const Standing& standing) {
  return {{"state", state_name(standing.state)},
          {"reached", standing.reached},
          {"called", standing.called},
          {"place", standing.place},
          {"iteration", standing.iteration}};
}

Standing standing_from_json(const Json& json) {
  const std::string name = json.at("state");
  const auto found = std::find(kStates.begin(), kStates.end(), name);
  if (found == kStates.end()) throw std::invalid_argument("unknown state " + name);
  return {static_cast<State>(found - kStates.begin()), json.at("reached"), json.at("called"), json.at("place"),
          json.at("iteration")};
}

}  // namespace faultline::race
