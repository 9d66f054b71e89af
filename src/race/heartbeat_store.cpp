#include "race/heartbeat_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

namespace faultline::race {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(200);

// Ranks that are not where most are; empty where no place has a majority.
std::vector<int> minority(const std::vector<PublishedBeat>& beats) {
  std::map<std::string, std::vector<int>> by_place;
  for (size_t rank = 0; rank < beats.size(); ++rank) by_place[beats[rank].place].push_back(static_cast<int>(rank));
  std::vector<int> elsewhere;
  for (const auto& [place, ranks] : by_place)
    if (2 * ranks.size() <= beats.size()) elsewhere.insert(elsewhere.end(), ranks.begin(), ranks.end());
  return elsewhere.size() == beats.size() ? std::vector<int>{} : elsewhere;
}

std::string key_of(int rank) { return fmt::format("beat/{}", rank); }

}  // namespace

BeatPublisher::BeatPublisher(c10::intrusive_ptr<c10d::Store> store, int rank, const Heartbeat& heartbeat, double limit,
                             std::function<void()> stuck)
    : store_(std::move(store)),
      rank_(rank),
      heartbeat_(heartbeat),
      limit_(limit),
      stuck_(std::move(stuck)),
      thread_([this] { publish_until_stopped(); }) {}

BeatPublisher::~BeatPublisher() {
  stop_ = true;
  thread_.join();
  if (stuck_thread_.joinable()) stuck_thread_.join();
}

void BeatPublisher::publish_until_stopped() {
  using Clock = std::chrono::steady_clock;
  uint64_t publication = 0, seen = 0;
  auto since = Clock::now();
  while (!stop_) {
    const uint64_t beats = heartbeat_.beats;
    if (beats != seen) seen = beats, since = Clock::now();
    try {
      store_->set(key_of(rank_), fmt::format("{} {} {}", ++publication, beats, heartbeat_.text()));
    } catch (const std::exception&) {
      return;  // the store is gone, and with it whoever would read this
    }
    if (stuck_ && std::chrono::duration<double>(Clock::now() - since).count() > limit_) {
      stuck_thread_ = std::thread(std::exchange(stuck_, nullptr));  // while others still see this process alive
    }
    std::this_thread::sleep_for(kPeriod);
  }
}

std::vector<PublishedBeat> read_beats(c10d::Store& store, int ranks) {
  std::vector<PublishedBeat> beats(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    PublishedBeat& beat = beats[static_cast<size_t>(rank)];
    try {
      if (!store.check({key_of(rank)})) continue;
      std::istringstream text(store.get_to_str(key_of(rank)));
      text >> beat.publication >> beat.beats >> std::ws;
      std::getline(text, beat.place);
      beat.present = true;
    } catch (const std::exception&) {
      return beats;  // without the store nobody can be told apart
    }
  }
  return beats;
}

std::vector<int> blamed_by_beats(const std::vector<PublishedBeat>& before, const std::vector<PublishedBeat>& after,
                                 int self) {
  std::vector<int> silent, behind;
  uint64_t least = ~uint64_t{0};
  for (size_t rank = 0; rank < after.size(); ++rank) {
    if (!after[rank].present || after[rank].publication == before[rank].publication)
      silent.push_back(static_cast<int>(rank));
    least = std::min(least, after[rank].beats);
  }
  std::erase(silent, self);
  if (!silent.empty()) return silent;
  if (const std::vector<int> elsewhere = minority(after); !elsewhere.empty()) return elsewhere;
  for (size_t rank = 0; rank < after.size(); ++rank)
    if (after[rank].beats == least) behind.push_back(static_cast<int>(rank));
  return behind.size() == after.size() ? std::vector<int>{} : behind;
}

}  // namespace faultline::race
