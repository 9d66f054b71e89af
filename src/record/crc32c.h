// CRC-32C (Castagnoli), the one checksum of our records: it guards the lines of events.jsonl and the TFRecord framing
// that TensorBoard reads. A table of 256 entries is enough: records are kilobytes per step.
#pragma once

#include <cstdint>
#include <string_view>

namespace faultline {

uint32_t crc32c(std::string_view bytes);

}  // namespace faultline
