#include "model/memory.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "model/build.h"
#include "model/checkpoint/tensor_table.h"

namespace faultline::model {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

int64_t sum_up_to_limit(int64_t a, int64_t b) { return a > kUnlimited - b ? kUnlimited : a + b; }

std::optional<int64_t> number_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  int64_t number = 0;
  if (stream >> number && number >= 0) return number;
  return std::nullopt;  // "max", or no such file
}

// The number behind a key of a file of lines: "MemAvailable:  123 kB", "inactive_file 456".
std::optional<int64_t> number_of(const std::filesystem::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string found;
    int64_t number = 0;
    if (words >> found >> number && found == key && number >= 0) return number;
  }
  return std::nullopt;
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return value >= 1e9 ? fmt::format("{:.1f} GB", value / 1e9) : fmt::format("{:.1f} MB", value / 1e6);
}

int64_t weight_bytes(const ModelConfig& config, at::ScalarType dtype) {
  const auto wide = static_cast<int64_t>(c10::elementSize(at::kFloat)),
             narrow = static_cast<int64_t>(c10::elementSize(dtype));
  int64_t bytes = 0;
  for (const TensorPlace& tensor : tensor_table(config)) {
    int64_t elements = 1;
    for (const int64_t size : tensor.sizes) elements *= size;  // check_config: no product overflows
    bytes = sum_up_to_limit(bytes, elements * (tensor.name.ends_with("norm.weight") ? wide : narrow));
  }
  return bytes;
}

int64_t weight_bytes(const Checkpoint& checkpoint, at::ScalarType dtype) {
  return weight_bytes(checkpoint.config(), dtype);
}

int64_t available_memory(const std::filesystem::path& root) {
  int64_t available = kUnlimited;
  const std::filesystem::path system = root / "proc/meminfo", group = root / "sys/fs/cgroup";
  if (const auto free = number_of(system, "MemAvailable:"))
    available = (*free + number_of(system, "SwapFree:").value_or(0)) * 1024;
  const auto limit = number_in(group / "memory.max"), used = number_in(group / "memory.current");
  if (!limit || !used) return available;
  int64_t left = *limit - *used;
  for (const char* key : {"active_file", "inactive_file", "slab_reclaimable"})  // counted as used, given back on demand
    left += number_of(group / "memory.stat", key).value_or(0);
  available = std::min(available, std::max<int64_t>(0, left));
  return available;
}

int64_t available_memory(const at::Device& device) {
  if (device.is_cpu()) return available_memory();
  at::globalContext().lazyInitDevice(device.type());
  return static_cast<int64_t>(at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
}

void refuse_what_does_not_fit(const Checkpoint& checkpoint, at::ScalarType dtype, int64_t available) {
  const int64_t needed = weight_bytes(checkpoint, dtype);
  if (needed <= available) return;
  throw UsageError(fmt::format(
      "{}: its weights take {} in {}, and {} of memory are available; take a smaller model{} or a larger machine",
      checkpoint.path().string(), human_bytes(needed), c10::toString(dtype), human_bytes(available),
      dtype == at::kFloat ? ", --dtype bf16" : ""));
}

}  // namespace faultline::model
