// What a model says about itself while it runs, beside its scopes: that a whole forward begins, and that a named tensor
// passes (a decoder layer's output, a norm's input). Nobody listens unless a plan is armed; then the tap does, and may
// answer with another tensor. So a model under test needs no part of the lab.
#pragma once

#include <ATen/core/Tensor.h>

#include "site/place.h"
#include "site/scope.h"
#include "site/selector.h"

namespace faultline::site {

// Forwards of one model that do not run the same operators: a prefill has no head, a decoding attends to a cache, a
// trainer's forward has its head apart (called for a piece of the positions at a time, so that logits stay small).
enum class ForwardKind : uint8_t { kWhole, kPrefill, kDecode, kBody, kHead };
inline constexpr int kForwardKinds = 5;

struct SiteListener {
  at::Tensor (*boundary)(const at::Tensor& x, PlaceId place, Surface surface);
  bool (*wants)(PlaceId place, Surface surface);  // whether any rule means that place and surface
  void (*forwards)(Phase phase, ForwardKind kind, int64_t count);
  bool (*tells_decodings_apart)();  // whether a rule means some decodings and not others
};
void set_site_listener(const SiteListener* listener);  // lives as long as the process; null: nobody
uint64_t
site_listener_changes();  // how often it was set: what was captured under another listener must be captured anew

// x itself unless a rule of the armed plan means that place and surface.
at::Tensor boundary(const at::Tensor& x, PlaceId place, Surface surface);
// Whether it would be another tensor. A model may fuse what nobody looks at.
bool boundary_is_wanted(PlaceId place, Surface surface);
// Whether a decoding may differ from the next: one that was captured in a graph is the same each time.
bool decodings_differ();

// push_scope of the whole model; told to the listener.
void begin_forward(PlaceId root, ForwardKind kind = ForwardKind::kWhole);
void count_forwards(ForwardKind kind,
                    int64_t count);  // more forwards of the present phase, as replays of a captured graph are
class ForwardScope {
 public:
  explicit ForwardScope(PlaceId root, ForwardKind kind = ForwardKind::kWhole) { begin_forward(root, kind); }
  ~ForwardScope() { pop_scope(); }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
};

// Routing: which experts of a mixture a forward has chosen. How often an expert runs is decided by the data, so whoever
// holds counts against a prediction has to be told the choice, by the code that made it and not by the calls that
// follow.

// experts: the place of the list of experts ("model.layers.0.mlp.experts"), which has `count` of them; chosen: their
// numbers, repeated at will; others are padding.
using RoutingListener = void (*)(PlaceId experts, const at::Tensor& chosen, int64_t count);
void set_routing_listener(RoutingListener listener);

void note_routing(PlaceId experts, const at::Tensor& chosen, int64_t count);

}  // namespace faultline::site
