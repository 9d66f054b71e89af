// GSM8K's records as text: one JSON object a line, either the original fields (question, answer) or verl's
// (data_source, prompt, reward_model, extra_info). Both give the same Problems. Rows of a parquet file come through
// here too, as lines, so that there is one place that decides what a record must hold. No torch: this is what the
// fuzzer runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "task/task.h"

namespace faultline {

inline constexpr size_t kMaxRecordBytes = size_t{1} << 20;  // of one line; GSM8K's longest has 2,000

enum class RecordPlace { kLine, kRow };  // "train.jsonl:3" or "train.parquet: row 3"

// `split` becomes part of the ids. UsageError with the place and the field; nothing is skipped.
std::vector<Problem> parse_gsm8k(std::string_view text, const std::string& file, const std::string& split,
                                 RecordPlace place = RecordPlace::kLine);

}  // namespace faultline
