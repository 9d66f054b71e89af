#include "site/torch_support.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace faultline::site {

SilentWarnings::SilentWarnings() : before_(c10::WarningUtils::get_warning_handler()) {
  c10::WarningUtils::set_warning_handler(this);
}
SilentWarnings::~SilentWarnings() { c10::WarningUtils::set_warning_handler(before_); }

void* current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void settle_vector_functions() {
  using Function = at::Tensor (*)(const at::Tensor&);
  constexpr Function kFunctions[] = {at::acos, at::asin,  at::atan, at::cos,   at::cosh,  at::erf,  at::erfc,
                                     at::exp,  at::expm1, at::log,  at::log10, at::log1p, at::log2, at::sin,
                                     at::sinh, at::sqrt,  at::tan,  at::tanh,  at::erfinv};
  const at::NoGradGuard no_gradients;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor one = at::full({1}, 0.5, dtype);
    for (const Function function : kFunctions) function(one);
  }
}

}  // namespace faultline::site
