// The reflected form of polynomial 0x1EDC6F41 (RFC 3720, appendix B.4), one byte per table look-up.
#include "record/crc32c.h"

#include <array>

namespace faultline {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82F63B78u : 0u);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = 0xFFFFFFFFu;
  for (const char c : bytes) value = (value >> 8) ^ kTable[(value ^ static_cast<uint8_t>(c)) & 0xFF];
  return value ^ 0xFFFFFFFFu;
}

}  // namespace faultline
