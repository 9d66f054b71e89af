// Routing: which experts of a mixture a forward has chosen. How often an expert runs is decided by the data, so whoever
// holds counts against a prediction has to be told the choice, by the code that made it and not by the calls that
// follow.
#pragma once

#include <ATen/core/Tensor.h>

#include "site/place.h"

namespace faultline {

// experts: the place of the list of experts ("model.layers.0.mlp.experts"), which has `count` of them; chosen: their
// numbers, repeated at will; others are padding.
using RoutingListener = void (*)(PlaceId experts, const at::Tensor& chosen, int64_t count);
void set_routing_listener(RoutingListener listener);

void tell_routing(PlaceId experts, const at::Tensor& chosen, int64_t count);

}  // namespace faultline
