// Time in records is UTC: a run directory may be read in another time zone than it was written in.
#include "record/clock.h"

#include <chrono>
#include <cmath>
#include <ctime>

#include "base/error.h"

namespace faultline {

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_timestamp(double seconds) { return utc_text(seconds, "%Y%m%dT%H%M%SZ"); }

std::string utc_text(double seconds, const char* format) {
  FL_ASSERT(seconds >= 0 && seconds < 253402300800.0);  // years 1970 to 9999
  const auto whole = static_cast<std::time_t>(std::floor(seconds));
  std::tm parts{};
  gmtime_r(&whole, &parts);
  char text[32];
  std::strftime(text, sizeof text, format, &parts);
  return text;
}

}  // namespace faultline
