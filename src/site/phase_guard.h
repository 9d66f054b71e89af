// Names the phase of what runs while it lives.
#pragma once

#include <optional>

#include "site/scope.h"

namespace faultline {

class PhaseGuard {
 public:
  explicit PhaseGuard(Phase phase) : before_(get_phase()) { set_phase(phase); }
  ~PhaseGuard() { set_phase(before_); }
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  std::optional<Phase> before_;
};

}  // namespace faultline
