// Where the data that ship with the project are: $FAULTLINE_DATA if it is set; else `data` in the folder of
// libfaultline.so or of the program, or beside that folder; else the source tree the library was built from.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "task/task.h"

namespace faultline::task {

// "gsm8k/train.jsonl" → its path. UsageError naming the folders where it is not.
std::filesystem::path data_file(const std::string& name);

// GSM8K's records as text: one JSON object a line, either the original fields (question, answer) or verl's
// (data_source, prompt, reward_model, extra_info). Both give the same Problems. Rows of a parquet file come through
// here too, as lines, so that there is one place that decides what a record must hold. No torch: this is what the
// fuzzer runs.

inline constexpr size_t kMaxRecordBytes = size_t{1} << 20;  // of one line; GSM8K's longest has 2,000

enum class RecordPlace { kLine, kRow };  // "train.jsonl:3" or "train.parquet: row 3"

// `split` becomes part of the ids. UsageError with the place and the field; nothing is skipped.
std::vector<Problem> parse_gsm8k(std::string_view text, const std::string& file, const std::string& split,
                                 RecordPlace place = RecordPlace::kLine);

// Rows of a parquet file as JSON lines, read by libfaultline_parquet.so, which is loaded on first use: Arrow's 60 MB
// are needed by those who have such files and by nobody else.

// One object a row with those of the columns that exist. UsageError with file and column.
std::string parquet_rows(const std::filesystem::path& file, const std::vector<std::string>& columns);

}  // namespace faultline::task
