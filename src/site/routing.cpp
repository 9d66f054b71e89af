#include "site/routing.h"

#include <atomic>

namespace faultline {
namespace {

std::atomic<RoutingListener> listener{nullptr};

}  // namespace

void set_routing_listener(RoutingListener now) { listener.store(now, std::memory_order_release); }

void tell_routing(PlaceId experts, const at::Tensor& chosen, int64_t count) {
  if (const RoutingListener now = listener.load(std::memory_order_acquire)) now(experts, chosen, count);
}

}  // namespace faultline
