#include "site/boundary.h"

#include <atomic>

namespace faultline {
namespace {
std::atomic<const SiteListener*> listener{nullptr};
}

void set_site_listener(const SiteListener* now) { listener.store(now, std::memory_order_release); }

at::Tensor boundary(const at::Tensor& x, PlaceId place, Surface surface) {
  const SiteListener* now = listener.load(std::memory_order_acquire);
  return now == nullptr ? x : now->boundary(x, place, surface);
}

void begin_forward(PlaceId root) {
  push_scope(root);
  const SiteListener* now = listener.load(std::memory_order_acquire);
  if (now == nullptr) return;
  const Phase phase = locate().phase;
  if (phase != Phase::kRecompute) now->forward(phase);
}

}  // namespace faultline
