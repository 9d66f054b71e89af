#include "task/parquet_rows.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "task/data_files.h"
#include "task/parquet/interface.h"

namespace faultline {
namespace {

struct ParquetModule {
  decltype(&faultline_parquet_rows) rows = nullptr;
  decltype(&faultline_parquet_free) free = nullptr;
  std::string complaint;  // why it is not here
};

ParquetModule load_module() {
  ParquetModule module;
  const auto path = library_folder() / "libfaultline_parquet.so";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    module.complaint = "libfaultline_parquet.so was not built";
    return module;
  }
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    module.complaint = ::dlerror();
    return module;
  }
  module.rows = reinterpret_cast<decltype(module.rows)>(::dlsym(handle, "faultline_parquet_rows"));
  module.free = reinterpret_cast<decltype(module.free)>(::dlsym(handle, "faultline_parquet_free"));
  FL_ASSERT(module.rows != nullptr && module.free != nullptr);
  return module;
}

}  // namespace

std::string parquet_rows(const std::filesystem::path& file, const std::vector<std::string>& columns) {
  static const ParquetModule module = load_module();
  if (module.rows == nullptr) {
    throw UsageError(fmt::format("{}: parquet cannot be read here ({}); convert to .jsonl or build with pyarrow",
                                 file.string(), module.complaint));
  }
  std::vector<const char*> names;
  for (const std::string& column : columns) names.push_back(column.c_str());
  char* text = nullptr;
  size_t size = 0;
  const int failed = module.rows(file.c_str(), names.data(), names.size(), &text, &size);
  if (text == nullptr) throw UsageError(fmt::format("{}: out of memory", file.string()));
  const std::string result(text, size);
  module.free(text);
  if (failed != 0) throw UsageError(fmt::format("{}: {}", file.string(), result));
  return result;
}

}  // namespace faultline
