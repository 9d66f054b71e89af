#include "race/hooks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"

namespace faultline::race {
namespace {

constexpr double kLongestPauseSeconds = 30;

uint64_t draw(const Injection& injection, const Site& site, uint64_t salt) {
  uint64_t word = mix64(injection.seed, salt);
  word = mix64(word, static_cast<uint64_t>(site.iteration));
  word = mix64(word, static_cast<uint64_t>(site.layer));
  return mix64(word, static_cast<uint64_t>(site.rank) * 16 + static_cast<uint64_t>(site.place));
}

// The buffer as integers of the elements' width: bits are moved, never values.
at::Tensor as_integers(const at::Tensor& buffer) {
  return buffer.view({-1}).view(buffer.element_size() == 2 ? at::kShort : at::kInt);
}

void flip(const at::Tensor& words, int64_t element, int64_t bit) {
  const int64_t mask = static_cast<int64_t>(static_cast<uint64_t>(1) << bit);
  at::Tensor one = words.narrow(0, element, 1);
  one.bitwise_xor_(
      at::full({}, words.element_size() == 2 ? static_cast<int16_t>(mask) : static_cast<int32_t>(mask), one.options()));
}

void sleep_for(double milliseconds, const std::atomic<bool>& cancelled) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(milliseconds);
  while (std::chrono::steady_clock::now() < end && !cancelled)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Two elements that differ, so that exchanging them changes something.
std::pair<int64_t, int64_t> unequal_pair(const at::Tensor& words, int64_t first) {
  const at::Tensor differing = words.ne(words.select(0, first)).nonzero();
  if (differing.numel() == 0) return {first, first};
  return {first, differing.select(0, differing.size(0) / 2).item<int64_t>()};
}

void swap_elements(const at::Tensor& words, int64_t first) {
  const auto [a, b] = unequal_pair(words, first);
  const at::Tensor kept = words.select(0, a).clone();
  words.select(0, a).copy_(words.select(0, b));
  words.select(0, b).copy_(kept);
}

}  // namespace

bool Site::operator<(const Site& other) const {
  return std::tie(place, iteration, layer, rank) < std::tie(other.place, other.iteration, other.layer, other.rank);
}

Injector::Injector(std::vector<Injection> injections, std::shared_ptr<std::atomic<bool>> cancelled, bool own_process)
    : injections_(std::move(injections)), cancelled_(std::move(cancelled)), own_process_(own_process) {}

bool Injector::strikes(const Injection& injection, const Site& site, size_t index) const {
  if (injection.target != site.place) return false;
  if (injection.layer && site.layer != *injection.layer) return false;
  if (injection.rank && site.rank != *injection.rank) return false;
  if (injection.iteration ? site.iteration != *injection.iteration : site.iteration < 0) return false;
  return static_cast<double>(draw(injection, site, index) >> 11) * 0x1p-53 < injection.probability;
}

void Injector::visit(const Site& site, const at::Tensor& buffer, const StaleContent& stale) {
  for (size_t i = 0; i < injections_.size(); ++i)
    if (injections_[i].kind != FaultType::kSkip && strikes(injections_[i], site, i))
      plant(injections_[i], site, buffer, stale);
}

bool Injector::skips(const Site& site) {
  for (size_t i = 0; i < injections_.size(); ++i)
    if (injections_[i].kind == FaultType::kSkip && strikes(injections_[i], site, i)) return ++planted_ > 0;
  return false;
}

void Injector::plant(const Injection& injection, const Site& site, const at::Tensor& buffer,
                     const StaleContent& stale) {
  ++planted_;
  const at::Tensor words = as_integers(buffer);
  const int64_t elements = words.numel();
  const auto drawn = static_cast<int64_t>(draw(injection, site, 1000) % static_cast<uint64_t>(elements));
  const int64_t element = injection.element.value_or(drawn) % elements, tail = elements - elements / 2;
  const int64_t bit = injection.bit.value_or(
      static_cast<int64_t>(draw(injection, site, 1001) % static_cast<uint64_t>(8 * words.element_size())));
  switch (injection.kind) {
    case FaultType::kBitFlip: flip(words, element, bit); break;
    case FaultType::kZero:
      words.narrow(0, element - element % 2, std::min<int64_t>(64, elements - element + element % 2)).zero_();
      break;
    case FaultType::kStale: words.copy_(as_integers(stale())); break;
    case FaultType::kSwap: swap_elements(words, element); break;
    case FaultType::kPartial:
      words.narrow(0, tail, elements - tail).copy_(as_integers(stale()).narrow(0, tail, elements - tail));
      break;
    case FaultType::kNan: buffer.view({-1}).narrow(0, element, 1).fill_(std::nan("")); break;
    case FaultType::kDelay: sleep_for(injection.delay_ms, *cancelled_); break;
    case FaultType::kSkip: break;
    case FaultType::kExit:
      if (own_process_) std::raise(SIGKILL);
      throw RankExit(fmt::format("injected exit of rank {}", site.rank));
  }
}

void PausePoints::ask(const Site& site) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_[site] = {};
}

bool PausePoints::await(const Site& site, Pause& pause, double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool came = changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                      [&] { return entries_[site].stage == Stage::kPaused; });
  if (came) pause = entries_[site].pause;
  return came;
}

void PausePoints::release(const Site& site) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_[site].stage = Stage::kReleased;
  changed_.notify_all();
}

void PausePoints::visit(const Site& site, const at::Tensor& buffer, const StaleContent&) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = entries_.find(site);
  if (found == entries_.end() || found->second.stage != Stage::kAsked) return;
  found->second = {Stage::kPaused,
                   {site, buffer.mutable_data_ptr(), buffer.numel() * static_cast<int64_t>(buffer.element_size()),
                    static_cast<int>(buffer.element_size())}};
  changed_.notify_all();
  changed_.wait_for(lock, std::chrono::duration<double>(kLongestPauseSeconds),
                    [&] { return found->second.stage == Stage::kReleased; });
  entries_.erase(found);
}

}  // namespace faultline::race
