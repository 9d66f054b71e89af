#include "base/error.h"

#include <fmt/format.h>

namespace faultline {

void assertion_failed(const char* condition, const char* file, int line) {
  throw InternalError(fmt::format("{}:{}: internal error: {} does not hold; please report it", file, line, condition));
}

}  // namespace faultline
