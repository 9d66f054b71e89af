// Fuzzes the safetensors container. The first byte chooses: the bytes as a file; a header alone, with as much data as
// its second byte says; what is accepted is written again and must read the same.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files/safetensors_header.h"
#include "base/fuzz_target.h"

namespace {

using namespace faultline;

void require(bool condition) {
  if (!condition) std::abort();
}

void check(std::string_view header, uint64_t data_size) {
  std::vector<SafetensorsEntry> entries = parse_safetensors_header(header, data_size, "fuzz");
  std::vector<uint64_t> bytes;
  uint64_t total = 0;
  for (const SafetensorsEntry& entry : entries) {
    require(entry.begin <= entry.end && entry.end <= data_size);
    bytes.push_back(entry.end - entry.begin);
    total += bytes.back();
    for (const uint64_t size : {1, 2, 4, 8}) {
      try {
        check_safetensors_bytes(entry, size, "fuzz");
      } catch (const RuntimeFailure&) {
      }
    }
  }
  require(total == data_size);
  const std::vector<SafetensorsEntry> before = entries;
  const std::string file = make_safetensors_header(entries, bytes);
  const uint64_t size = safetensors_header_size(file, file.size() + data_size, "again");
  require(size == file.size() - kSafetensorsPrefix && size % 8 == 0);
  const auto again = parse_safetensors_header(std::string_view(file).substr(kSafetensorsPrefix), data_size, "again");
  require(again.size() == before.size());
  for (std::size_t i = 0; i < again.size(); ++i) {
    require(again[i].name == before[i].name && again[i].dtype == before[i].dtype && again[i].sizes == before[i].sizes);
  }
}

}  // namespace

FAULTLINE_FUZZ_TARGET(safetensors_fuzz)(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 2 == 0) {
      const uint64_t header = safetensors_header_size(text.substr(0, kSafetensorsPrefix), text.size(), "fuzz");
      check(text.substr(kSafetensorsPrefix, header), text.size() - kSafetensorsPrefix - header);
    } else {
      check(text.substr(1), static_cast<unsigned char>(text[0]));
    }
  } catch (const RuntimeFailure&) {
  }
  return 0;
}
