// Errors at the border to torch: a user's mistake becomes Python's ValueError with our sentence, any other error of
// ours a RuntimeError.
#pragma once

#include <c10/util/Exception.h>

#include "base/error.h"

namespace faultline {

template <class Function>
auto translated(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const UsageError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  } catch (const Error& error) {
    TORCH_CHECK(false, error.what());
  }
}

}  // namespace faultline
