// Where records get their time from. A clock is a function, so that a test passes its own and two runs of it write the
// same bytes.
#pragma once

#include <functional>
#include <string>

namespace faultline {

// Seconds since 1970-01-01 UTC.
using Clock = std::function<double()>;

double system_seconds();

// 20260131T235959Z: sorts by time and is a valid file name everywhere.
std::string utc_timestamp(double seconds);
std::string utc_text(double seconds, const char* format);  // as strftime says it

}  // namespace faultline
