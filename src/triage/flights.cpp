#include "triage/flights.h"

#include "base/error.h"

namespace faultline::triage {

Flights::~Flights() = default;  // jthreads join

void Flights::start(Flight flight, Executor& executor) {
  ++count_;
  const auto thread = threads_.emplace(threads_.end());
  *thread = std::jthread([this, &executor, thread, flight = std::move(flight)]() mutable {
    Landed landed;
    landed.thread = thread;
    try {
      landed.result = executor.run(flight.request, flight.folder);
    } catch (...) {
      landed.failure = std::current_exception();
    }
    landed.flight = std::move(flight);
    const std::lock_guard<std::mutex> lock(mutex_);
    landed_.push_back(std::move(landed));
    landed_one_.notify_one();
  });
}

std::pair<Flight, TrialResult> Flights::wait() {
  FL_ASSERT(count_ > 0);
  std::unique_lock<std::mutex> lock(mutex_);
  landed_one_.wait(lock, [&] { return !landed_.empty(); });
  Landed landed = std::move(landed_.front());
  landed_.erase(landed_.begin());
  lock.unlock();
  threads_.erase(landed.thread);  // joins
  --count_;
  if (landed.failure) std::rethrow_exception(landed.failure);
  return {std::move(landed.flight), std::move(landed.result)};
}

}  // namespace faultline::triage
