// The container format of .safetensors, without torch: eight bytes with the header's size, a JSON object with an entry
// for each tensor, then the tensors' bytes without holes. Every length and offset is checked against the file's size
// here, once, for all who read such files; what an entry's bytes mean is theirs to say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace faultline {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the file says: "BF16"
  std::vector<int64_t> sizes;
  uint64_t begin = 0, end = 0;  // bytes, counted from the end of the header
};

bool is_sizes(const Json& value);  // a list of at most 32 integers from 0 to 2^63 - 1

constexpr uint64_t kSafetensorsPrefix = 8;  // bytes before the header

// The header's size, from the file's first eight bytes. RuntimeFailure where the file cannot hold it.
uint64_t safetensors_header_size(std::string_view prefix, uint64_t file_size, const std::filesystem::path& path);

// The entries in the order of their names. `data_size`: bytes after the header. RuntimeFailure where an entry is
// malformed, lies outside the data, overlaps another or leaves a hole (as one of two entries with one name would).
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view header, uint64_t data_size,
                                                       const std::filesystem::path& path);

// RuntimeFailure unless sizes times `element_size` is what the entry's offsets span.
void check_safetensors_bytes(const SafetensorsEntry& entry, uint64_t element_size, const std::filesystem::path& path);

// Prefix and header of a file that holds these tensors one after another, in this order; begin and end of each entry
// are filled in from `bytes`. The data starts at a multiple of eight.
std::string make_safetensors_header(std::vector<SafetensorsEntry>& entries, const std::vector<uint64_t>& bytes,
                                    const std::map<std::string, std::string>& metadata = {});

}  // namespace faultline
