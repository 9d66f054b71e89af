#include "site/boundary.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>

#include "site/forward.h"

namespace faultline::site {
namespace {

std::atomic<const SiteListener*> listener{nullptr};
std::atomic<uint64_t> changes{0};
thread_local ForwardTally begun{};

constexpr std::array<std::string_view, kForwardKinds> kKindNames = {"whole", "prefill", "decode", "body", "head"};

const SiteListener* current() { return listener.load(std::memory_order_acquire); }

}  // namespace

void set_site_listener(const SiteListener* now) {
  listener.store(now, std::memory_order_release);
  ++changes;
}
uint64_t site_listener_changes() { return changes; }

at::Tensor boundary(const at::Tensor& x, PlaceId place, Surface surface) {
  const SiteListener* now = current();
  return now == nullptr ? x : now->boundary(x, place, surface);
}
bool boundary_is_wanted(PlaceId place, Surface surface) {
  const SiteListener* now = current();
  return now != nullptr && now->wants(place, surface);
}

bool decodings_differ() {
  const SiteListener* now = current();
  return now != nullptr && now->tells_decodings_apart();
}

std::string_view forward_kind_name(ForwardKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::optional<ForwardKind> forward_kind_by_name(std::string_view name) {
  const auto found = std::find(kKindNames.begin(), kKindNames.end(), name);
  if (found == kKindNames.end()) return {};
  return static_cast<ForwardKind>(found - kKindNames.begin());
}

void begin_forward(PlaceId root, ForwardKind kind) { begin_forward(root, kind, std::nullopt); }

void begin_forward(PlaceId root, ForwardKind kind, std::optional<Phase> phase) {
  push_forward(root, kind, phase);
  count_forwards(kind, 1);
}

const ForwardTally& forwards_begun() { return begun; }

void count_forwards(ForwardKind kind, int64_t count) {
  const SiteListener* now = current();
  const auto tell = [&](Phase phase) {
    begun[static_cast<std::size_t>(phase)][static_cast<std::size_t>(kind)] += count;
    if (now != nullptr) now->forwards(phase, kind, count);
  };
  const Phase phase = locate().phase;
  if (phase == Phase::kRecompute) return;
  tell(phase);
  if (phase == Phase::kActorForward && at::GradMode::is_enabled()) tell(Phase::kActorBackward);
}

namespace {

std::atomic<RoutingListener> routing_listener{nullptr};

}  // namespace

void set_routing_listener(RoutingListener now) { routing_listener.store(now, std::memory_order_release); }

void note_routing(PlaceId experts, const at::Tensor& chosen, int64_t count) {
  if (const RoutingListener now = routing_listener.load(std::memory_order_acquire)) now(experts, chosen, count);
}

}  // namespace faultline::site
