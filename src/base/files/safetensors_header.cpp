#include "base/files/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace faultline {
namespace {

constexpr uint64_t kMaxHeader = uint64_t{100} << 20;  // as the safetensors library has it
constexpr std::size_t kMaxDimensions = 32;

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& complaint) {
  throw RuntimeFailure(fmt::format("{}: damaged or not a safetensors file: {}", path.string(), complaint));
}

SafetensorsEntry read_entry(const std::filesystem::path& path, const std::string& name, const Json& entry,
                            uint64_t data_size) {
  const bool shaped = entry.is_object() && entry.size() == 3 && entry.contains("dtype") && entry["dtype"].is_string() &&
                      entry.contains("shape") && is_sizes(entry["shape"]) && entry.contains("data_offsets") &&
                      is_sizes(entry["data_offsets"]) && entry["data_offsets"].size() == 2;
  if (!shaped) damaged(path, fmt::format("the entry of tensor '{}' is not {{dtype, shape, data_offsets}}", name));
  SafetensorsEntry tensor{name, entry["dtype"], entry["shape"], entry["data_offsets"][0], entry["data_offsets"][1]};
  if (tensor.begin > tensor.end || tensor.end > data_size) {
    damaged(path, fmt::format("tensor '{}' claims bytes {} to {} of {}", name, tensor.begin, tensor.end, data_size));
  }
  return tensor;
}

void check_tiling(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& tensors, uint64_t data_size) {
  std::vector<const SafetensorsEntry*> sorted;
  for (const SafetensorsEntry& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t end = 0;
  for (const SafetensorsEntry* tensor : sorted) {
    if (tensor->begin != end) damaged(path, fmt::format("tensor '{}' overlaps another or leaves a hole", tensor->name));
    end = tensor->end;
  }
  if (end != data_size) damaged(path, fmt::format("its tensors end at byte {} of {}", end, data_size));
}

}  // namespace

bool is_sizes(const Json& value) {
  return value.is_array() && value.size() <= kMaxDimensions &&
         std::all_of(value.begin(), value.end(), [](const Json& size) {
           return size.is_number_unsigned() && size.get<uint64_t>() <= uint64_t{0x7FFFFFFFFFFFFFFF};
         });
}

uint64_t safetensors_header_size(std::string_view prefix, uint64_t file_size, const std::filesystem::path& path) {
  if (prefix.size() < kSafetensorsPrefix || file_size < kSafetensorsPrefix) {
    damaged(path, fmt::format("it has {} bytes where at least {} are announced", file_size, kSafetensorsPrefix));
  }
  uint64_t size = 0;
  for (std::size_t i = kSafetensorsPrefix; i > 0; --i) size = size << 8 | static_cast<unsigned char>(prefix[i - 1]);
  if (size > kMaxHeader) damaged(path, fmt::format("its header would have {} bytes", size));
  if (size > file_size - kSafetensorsPrefix) {
    damaged(path, fmt::format("it has {} bytes where at least {} are announced", file_size, kSafetensorsPrefix + size));
  }
  return size;
}

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view header, uint64_t data_size,
                                                       const std::filesystem::path& path) {
  const Json json = parse_json_text(header, path.string());
  if (!json.is_object()) damaged(path, "its header is not a JSON object");
  std::vector<SafetensorsEntry> tensors;
  for (const auto& [name, entry] : json.items()) {
    if (name != "__metadata__") tensors.push_back(read_entry(path, name, entry, data_size));
  }
  check_tiling(path, tensors, data_size);
  return tensors;
}

void check_safetensors_bytes(const SafetensorsEntry& entry, uint64_t element_size, const std::filesystem::path& path) {
  uint64_t bytes = element_size;
  bool overflow = false;
  for (const int64_t size : entry.sizes) {
    overflow = __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) || overflow;
  }
  if (overflow || bytes != entry.end - entry.begin) {
    damaged(path, fmt::format("tensor '{}' of shape ({}) has {} bytes", entry.name, fmt::join(entry.sizes, ", "),
                              entry.end - entry.begin));
  }
}

std::string make_safetensors_header(std::vector<SafetensorsEntry>& entries, const std::vector<uint64_t>& bytes,
                                    const std::map<std::string, std::string>& metadata) {
  FL_ASSERT(entries.size() == bytes.size());
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t place = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    SafetensorsEntry& entry = entries[i];
    entry.begin = place;
    entry.end = place += bytes[i];
    FL_ASSERT(!header.contains(entry.name));
    header[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.sizes}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string prefix(kSafetensorsPrefix, '\0');
  for (std::size_t i = 0; i < prefix.size(); ++i) prefix[i] = static_cast<char>(text.size() >> (8 * i));
  return prefix + text;
}

}  // namespace faultline
