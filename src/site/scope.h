// Which place and phase an operator runs in. Going forward a thread keeps a stack of places that models push and pop.
// In backward, an autograd node's sequence number says when, on which thread, its forward operator ran, and a time line
// of scope changes says which place that was. What cannot be known is kNowhere.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "site/place.h"

namespace faultline::site {

enum class Phase : uint8_t { kRollout, kActorForward, kActorBackward, kRecompute, kRef, kEval, kCritic, kDiagnose };
inline constexpr int kPhases = 8;
std::string_view phase_name(Phase phase);
std::optional<Phase> phase_by_name(std::string_view name);

// The phase of the whole process; nothing: told from the gradient mode at the outermost scope, or of the operator where
// there is none (with gradients actor_forward, without rollout).
// Inside an autograd node the phase is actor_backward, or recompute where a checkpointed forward runs again.
void set_phase(std::optional<Phase> phase);
std::optional<Phase> get_phase();

void push_scope(PlaceId place);
void pop_scope();
class Scope {
 public:
  explicit Scope(PlaceId place) { push_scope(place); }
  ~Scope() { pop_scope(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

struct Location {
  PlaceId place = kNowhere;
  Phase phase = Phase::kRollout;
};
Location locate();  // of what runs on this thread now

// A parameter's storage names a place even where no scope was pushed (compiled or fused modules).
void register_parameter(const at::Tensor& parameter, PlaceId place);
void forget_parameters();
// looked_up: by an embedding, which of tied owners is the one that is meant.
PlaceId place_of_storage(const at::Tensor& tensor, bool looked_up);
at::Tensor parameter_of_storage(const at::Tensor& tensor);  // undefined: not a registered parameter's storage

// Names the phase of what runs while it lives.

class PhaseGuard {
 public:
  explicit PhaseGuard(Phase phase) : before_(get_phase()) { set_phase(phase); }
  ~PhaseGuard() { set_phase(before_); }
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  std::optional<Phase> before_;
};

}  // namespace faultline::site
