// Fuzzes the parquet adapter: the bytes become a file, which our reader opens in a process of its own (Arrow itself
// does not survive every damaged file) and hands over as JSON lines; these go on to the reader of tasks. Only
// UsageError may come out, and never a hang or a crash of this process. Files are small: most of Arrow's work is
// metadata.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "task/gsm8k.h"

namespace faultline::task {
namespace {

// In memory, with a path that another process can open.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : descriptor_(::memfd_create("parquet_fuzz", 0)) {
    if (descriptor_ < 0 || ::write(descriptor_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(descriptor_); }
  std::string path() const { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace
}  // namespace faultline::task

FAULTLINE_FUZZ_TARGET(parquet_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline;
  using namespace faultline::task;
  const MemoryFile file(data, size);
  try {
    const std::string rows = parquet_rows(file.path(), {"prompt", "reward_model", "extra_info", "question", "answer"});
    (void)parse_gsm8k(rows, "fuzz", "fuzz", RecordPlace::kRow);
  } catch (const UsageError&) {
  }
  return 0;
}
