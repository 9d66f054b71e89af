// Fuzzes the metrics that somebody's command wrote. A file is records and a note, or a sentence; how its bytes arrive
// changes nothing; a value is a number, absent, or a sentence.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/fuzz_target.h"
#include "triage/metrics_file.h"

namespace faultline::triage {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// All that a reader learns, as text.
std::string account_of(std::string_view bytes, size_t piece, const std::string& name) {
  std::string account;
  try {
    account += read_metrics_bytes(bytes, piece, name, [&](const MetricRecord& record) {
      account += record.place + to_json_text(record.values);
      for (const char* metric : {"loss", "a.b", "step"}) try {
          account += record.number(metric) ? "number" : "absent";
        } catch (const MetricsFileError& error) {
          account += error.what();
        }
    });
  } catch (const MetricsFileError& error) {
    require(std::string(error.what()).starts_with(name));
    account += error.what();
  }
  return account;
}

}  // namespace
}  // namespace faultline::triage

FAULTLINE_FUZZ_TARGET(metrics_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline::triage;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string name = data[0] % 2 == 0 ? "m.jsonl" : "m.csv";
  require(account_of(bytes, 1 + data[0] / 2, name) == account_of(bytes, std::max<size_t>(bytes.size(), 1), name));
  return 0;
}
