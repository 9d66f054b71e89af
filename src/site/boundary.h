// What a model says about itself while it runs, beside its scopes: that a whole forward begins, and that a named tensor
// passes (a decoder layer's output, a norm's input). Nobody listens unless a plan is armed; then the tap does, and may
// answer with another tensor. So a model under test needs no part of the lab.
#pragma once

#include <ATen/core/Tensor.h>

#include "site/scope.h"
#include "site/selector.h"

namespace faultline {

struct SiteListener {
  at::Tensor (*boundary)(const at::Tensor& x, PlaceId place, Surface surface);
  void (*forward)(Phase phase);
};
void set_site_listener(const SiteListener* listener);  // lives as long as the process; null: nobody

// x itself unless a rule of the armed plan means that place and surface.
at::Tensor boundary(const at::Tensor& x, PlaceId place, Surface surface);

void begin_forward(PlaceId root);  // push_scope of the whole model; told to the listener
class ForwardScope {
 public:
  explicit ForwardScope(PlaceId root) { begin_forward(root); }
  ~ForwardScope() { pop_scope(); }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
};

}  // namespace faultline
