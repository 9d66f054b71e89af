#include "site/routing.h"

#include <atomic>

namespace faultline {
namespace {

std::atomic<RoutingListener> routing_listener{nullptr};

}  // namespace

void set_routing_listener(RoutingListener now) { routing_listener.store(now, std::memory_order_release); }

void tell_routing(PlaceId experts, const at::Tensor& chosen, int64_t count) {
  if (const RoutingListener now = routing_listener.load(std::memory_order_acquire)) now(experts, chosen, count);
}

}  // namespace faultline
