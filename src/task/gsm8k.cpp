// GSM8K (Cobbe et al. 2021) from files: the shipped ones, or the user's own .jsonl or .parquet.
#include "task/gsm8k.h"

#include <fmt/format.h>

#include <fstream>

#include "base/error.h"

namespace faultline::task {
namespace fs = std::filesystem;
namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{1} << 30;

void check_file(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::exists(status)) throw UsageError(fmt::format("{}: the file does not exist", file.string()));
  if (!fs::is_regular_file(status)) throw UsageError(fmt::format("{}: not a regular file", file.string()));
  const uintmax_t size = fs::file_size(file, error);
  if (error) throw UsageError(fmt::format("{}: {}", file.string(), error.message()));
  if (size == 0) throw UsageError(fmt::format("{}: the file is empty", file.string()));
  if (size > kMaxFileBytes)
    throw UsageError(fmt::format("{}: {} bytes; a task file has at most {}", file.string(), size, kMaxFileBytes));
}

std::string whole_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(fs::file_size(file), '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream) throw UsageError(fmt::format("{}: cannot be read", file.string()));
  return text;
}

}  // namespace

std::vector<Problem> read_gsm8k(const fs::path& file) {
  const std::string kind = file.extension().string(), split = file.stem().string();
  if (kind != ".jsonl" && kind != ".parquet")
    throw UsageError(fmt::format("{}: wanted a .jsonl or .parquet file", file.string()));
  check_file(file);
  if (kind == ".jsonl") return parse_gsm8k(whole_text(file), file.string(), split);
  const std::string rows = parquet_rows(file, {"data_source", "prompt", "reward_model", "extra_info"});
  return parse_gsm8k(rows, file.string(), split, RecordPlace::kRow);
}

std::vector<Problem> gsm8k(const std::string& split) {
  check_split(task_info("gsm8k"), split);
  return read_gsm8k(data_file("gsm8k/" + split + ".jsonl"));
}

}  // namespace faultline::task
