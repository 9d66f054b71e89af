#include "race/heartbeat.h"

#include <fmt/format.h>

namespace faultline::race {

void Heartbeat::move(Standing::State state) {
  state_ = state;
  since_ = std::chrono::steady_clock::now();
  ++beats_;
}

void Heartbeat::move_to(int64_t iteration, int64_t layer, const char* operation) {
  iteration_ = iteration, layer_ = layer, operation_ = operation;
}

void Heartbeat::work(int64_t iteration, int64_t layer, const char* operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  move_to(iteration, layer, operation);
  move(Standing::State::kWorking);
}

void Heartbeat::wait(int64_t iteration, int64_t layer, const char* operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  move_to(iteration, layer, operation);
  move(Standing::State::kWaiting);
}

void Heartbeat::reach(int64_t iteration, int64_t layer, const char* collective, bool calls) {
  const std::lock_guard<std::mutex> lock(mutex_);  // both counts or none
  move_to(iteration, layer, collective);
  ++reached_;
  called_ += calls;
  move(calls ? Standing::State::kWaiting : Standing::State::kWorking);
}

void Heartbeat::call() {
  const std::lock_guard<std::mutex> lock(mutex_);
  move(Standing::State::kCalling);
}

void Heartbeat::go_on() {
  const std::lock_guard<std::mutex> lock(mutex_);
  move(Standing::State::kWorking);
}

void Heartbeat::fail() {
  const std::lock_guard<std::mutex> lock(mutex_);
  move(Standing::State::kFailed);
}

void Heartbeat::finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  move(Standing::State::kDone);
}

Standing Heartbeat::standing() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {state_, reached_, called_, fmt::format("iteration {}, layer {}, {}", iteration_, layer_, operation_),
          iteration_};
}

uint64_t Heartbeat::beats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return beats_;
}

double Heartbeat::seconds_here() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count();
}

}  // namespace faultline::race
