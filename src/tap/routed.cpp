#include "tap/routed.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <set>

#include "site/boundary.h"
#include "tap/operator_tap.h"

namespace faultline::tap {
namespace {

std::atomic<bool> in_census{false};

// Operators of our own, seen by no rule and by no census.
std::vector<int64_t> distinct_numbers(const at::Tensor& chosen, int64_t count) {
  const TapsSuspended asleep;
  const c10::impl::ExcludeDispatchKeyGuard uncounted(c10::DispatchKey::TESTING_ONLY_GenericMode);
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor numbers = chosen.to(at::kCPU, at::kLong).contiguous();
  const int64_t* data = numbers.const_data_ptr<int64_t>();
  std::vector<int64_t> all(data, data + numbers.numel());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase_if(all, [&](int64_t number) { return number < 0 || number >= count; });
  return all;
}

void on_routing(site::PlaceId experts, const at::Tensor& chosen, int64_t count) {
  const auto plan = active_plan();
  const bool counts = plan && plan->armed() && (plan->counts_routing() || chosen.is_cpu());
  if (!counts && !in_census) return;
  const std::vector<int64_t> distinct = distinct_numbers(chosen, count);
  if (in_census) routed_in_census().add(experts, distinct);
  if (counts) plan->routed().add(experts, distinct);
}

[[maybe_unused]] const bool kHears = [] {
  site::set_routing_listener(on_routing);
  return true;
}();

}  // namespace

void RoutedCalls::add(site::PlaceId experts, const std::vector<int64_t>& distinct) {
  const site::Phase phase = site::locate().phase;
  const site::ForwardKind kind = site::forward_kind();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto add_to = [&](site::Phase to) {
    std::vector<int64_t>& times = times_[{experts, to, kind}];
    for (const int64_t number : distinct) {
      if (static_cast<std::size_t>(number) >= times.size()) times.resize(static_cast<std::size_t>(number) + 1);
      times[static_cast<std::size_t>(number)] += 1;
    }
  };
  add_to(phase);
  if (phase == site::Phase::kActorForward && at::GradMode::is_enabled()) add_to(site::Phase::kActorBackward);
}

void RoutedCalls::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  times_.clear();
}

std::vector<int64_t> RoutedCalls::of(site::PlaceId experts, site::Phase phase, site::ForwardKind kind) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = times_.find({experts, phase, kind});
  if (found == times_.end() && phase == site::Phase::kActorBackward)
    found = times_.find({experts, site::Phase::kRecompute, kind});
  return found == times_.end() ? std::vector<int64_t>{} : found->second;
}

std::vector<site::PlaceId> RoutedCalls::places() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::set<site::PlaceId> all;
  for (const auto& [key, times] : times_) all.insert(std::get<0>(key));
  return {all.begin(), all.end()};
}

std::optional<ExpertPlace> expert_place(const std::string& path) {
  constexpr std::string_view kList = "experts";
  for (std::size_t at = path.find(kList); at != std::string::npos; at = path.find(kList, at + 1)) {
    const std::size_t end = at + kList.size();
    if ((at > 0 && path[at - 1] != '.') || (end < path.size() && path[end] != '.')) continue;
    ExpertPlace place{path.substr(0, end), std::nullopt, ""};
    if (end == path.size()) return place;
    const std::size_t next = std::min(path.find('.', end + 1), path.size());
    int64_t number = 0;
    const auto [last, error] = std::from_chars(path.data() + end + 1, path.data() + next, number);
    if (error == std::errc() && last == path.data() + next) {
      place.number = number;
      if (next < path.size()) place.inside = path.substr(next + 1);
    } else {
      place.inside = path.substr(end + 1);
    }
    return place;
  }
  return {};
}

bool routing_is_wanted() {
  const auto plan = active_plan();
  return in_census || (plan && plan->armed() && plan->counts_routing());
}

RoutedCalls& routed_in_census() {
  static auto* the_calls = new RoutedCalls;
  return *the_calls;
}

void record_routing(bool on) {
  if (on) routed_in_census().clear();
  in_census = on;
}

}  // namespace faultline::tap
