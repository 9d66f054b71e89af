#include "race/heartbeat_store.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

namespace faultline::race {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(200);

constexpr const char* kInterrupted = "interrupted";

std::string key_of(int rank) { return fmt::format("beat/{}", rank); }

PublishedBeat read_beat(c10d::Store& store, int rank) {
  if (!store.check({key_of(rank)})) return {};
  const Json json = parse_json_text(store.get_to_str(key_of(rank)), key_of(rank));
  return {true,
          json.at("publication"),
          json.at("beats"),
          json.at("left"),
          json.at("host"),
          standing_from_json(json.at("standing"))};
}

}  // namespace

BeatPublisher::BeatPublisher(c10::intrusive_ptr<c10d::Store> store, int rank, std::string host,
                             const Heartbeat& heartbeat, double limit, Calls calls)
    : store_(std::move(store)),
      rank_(rank),
      host_(std::move(host)),
      heartbeat_(heartbeat),
      patience_(limit, kPeriod),
      calls_(std::move(calls)),
      thread_([this] { publish_until_stopped(); }) {}

BeatPublisher::~BeatPublisher() {
  stop_ = true;
  thread_.join();
  if (stuck_thread_.joinable()) stuck_thread_.join();
  (void)publish(true);
}

bool BeatPublisher::publish(bool leaves) {
  const Json beat = {{"publication", ++publication_},
                     {"beats", heartbeat_.beats()},
                     {"left", leaves},
                     {"host", host_},
                     {"standing", to_json(heartbeat_.standing())}};
  try {
    store_->set(key_of(rank_), to_json_text(beat));
    if (calls_.interrupted && store_->check({kInterrupted})) std::exchange(calls_.interrupted, nullptr)();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void BeatPublisher::publish_until_stopped() {
  while (!stop_ && publish(false)) {
    const uint64_t beats = heartbeat_.beats();
    if (beats != seen_) seen_ = beats, patience_.restart();
    if (calls_.stuck && patience_.over())
      stuck_thread_ = std::thread(std::exchange(calls_.stuck, nullptr));  // while others still see this process alive
    std::this_thread::sleep_for(kPeriod);
  }
  if (!stop_ && calls_.store_gone) calls_.store_gone();
}

void publish_interruption(c10d::Store& store) { store.set(kInterrupted, ""); }

std::vector<PublishedBeat> read_beats(c10d::Store& store, int ranks) {
  std::vector<PublishedBeat> beats(static_cast<size_t>(ranks));
  try {
    for (int rank = 0; rank < ranks; ++rank) beats[static_cast<size_t>(rank)] = read_beat(store, rank);
  } catch (const std::exception&) {  // without the store nobody can be told apart
  }
  return beats;
}

LivenessCheck::LivenessCheck(c10::intrusive_ptr<c10d::Store> store, int ranks)
    : store_(std::move(store)), first_(read_beats(*store_, ranks)), last_(first_) {}

std::vector<Standing> LivenessCheck::standings() const {
  const std::vector<PublishedBeat> now = read_beats(*store_, static_cast<int>(first_.size()));
  std::vector<Standing> standings;
  for (size_t rank = 0; rank < now.size(); ++rank) {
    const bool lives = now[rank].present && now[rank].publication != first_[rank].publication;
    standings.push_back(now[rank].standing);
    if (!lives && !now[rank].left) standings.back().state = Standing::State::kSilent;
  }
  return standings;
}

std::string LivenessCheck::host(int rank) const { return last_[static_cast<size_t>(rank)].host; }

bool LivenessCheck::reported_again(int rank) {
  const auto index = static_cast<size_t>(rank);
  const PublishedBeat now = read_beats(*store_, static_cast<int>(first_.size()))[index];
  return now.publication != std::exchange(last_[index], now).publication;
}

}  // namespace faultline::race
