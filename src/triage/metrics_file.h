// The numbers that somebody else's command wrote: JSON lines or a CSV table in the folder of its trial. The file is
// read as it is found after the command ended, however it ended, so that each way in which it can be broken has a
// sentence of its own: it may be missing, torn at its end, huge, in another encoding or in another format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/config/schema.h"
#include "base/error.h"

namespace faultline::triage {

inline constexpr uint64_t kMaxMetricsBytes = uint64_t{256} << 20;  // of a file
inline constexpr size_t kMaxMetricsLine = size_t{1} << 20;

// The file cannot be judged. The sentence begins with its name, and with the line where there is one.
class MetricsFileError : public RuntimeFailure {
 public:
  using RuntimeFailure::RuntimeFailure;
};

struct MetricRecord {
  std::string place;  // "metrics.jsonl:17"
  Json values;        // an object; of a table: the cells that are not empty, as text

  // The number under this name; `a.b` is also b within a. nullopt: the record does not have it. JSON's null, which
  // writers of strict JSON put in NaN's place, is NaN; an empty cell of a table is none.
  std::optional<double> number(const std::string& name) const;  // MetricsFileError where it is something else
};

// A file of the trial's folder as a recipe names it: relative, and within the folder.
Schema trial_file_schema();
Schema metrics_file_schema();  // ends in .jsonl, .ndjson or .csv

// "" or why it cannot be read as a file: it is missing, a folder, a link, a pipe.
std::string complain_trial_file(const std::filesystem::path& folder, const std::string& name);

// Every record in the order of the file; "" or a note about its end. A last line without a newline that cannot be read
// was torn when its writer was ended, and is left out.
std::string read_metrics(const std::filesystem::path& folder, const std::string& name,
                         const std::function<void(const MetricRecord& record)>& visit);
// The same of bytes that are there, in pieces of this size.
std::string read_metrics_bytes(std::string_view bytes, size_t piece, const std::string& name,
                               const std::function<void(const MetricRecord& record)>& visit);

}  // namespace faultline::triage
