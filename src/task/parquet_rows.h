// Rows of a parquet file as JSON lines, read by libfaultline_parquet.so, which is loaded on first use: Arrow's 60 MB
// are needed by those who have such files and by nobody else.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace faultline {

// One object a row with those of the columns that exist. UsageError with file and column.
std::string parquet_rows(const std::filesystem::path& file, const std::vector<std::string>& columns);

}  // namespace faultline
