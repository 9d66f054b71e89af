#include "model/checkpoint/gguf_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace faultline::model {
namespace {

constexpr std::array<BlockType, 9> kTypes = {{{kBlockF32, "F32", 1, 4},
                                              {kBlockF16, "F16", 1, 2},
                                              {kBlockBf16, "BF16", 1, 2},
                                              {2, "Q4_0", 32, 18},
                                              {3, "Q4_1", 32, 20},
                                              {6, "Q5_0", 32, 22},
                                              {8, "Q8_0", 32, 34},
                                              {12, "Q4_K", 256, 144},
                                              {14, "Q6_K", 256, 210}}};

// Names for the refusal; a nullptr was never given or has been withdrawn.
constexpr std::array<const char*, 41> kBlockNames = {
    "F32",   "F16",    "Q4_0",  "Q4_1",  nullptr, nullptr,   "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",   "I64",     "F64",    "IQ1_M",   "BF16",  nullptr,  nullptr,
    nullptr, "TQ1_0",  "TQ2_0", nullptr, nullptr, nullptr,   "MXFP4",  "NVFP4"};

template <typename T>
T load(const std::byte* place) {
  T value;
  std::memcpy(&value, place, sizeof value);
  return value;
}

float scale(const std::byte* place) { return half_to_float(load<uint16_t>(place)); }

// 32 values from 16 bytes: the low halves first.
void unpack_nibbles(const std::byte* packed, float* values, float subtracted) {
  for (int i = 0; i < 16; ++i) {
    const auto byte = static_cast<unsigned>(packed[i]);
    values[i] = static_cast<float>(static_cast<int>(byte & 15)) - subtracted;
    values[i + 16] = static_cast<float>(static_cast<int>(byte >> 4)) - subtracted;
  }
}

void block_q4_0(const std::byte* block, float* values) {
  const float d = scale(block);
  unpack_nibbles(block + 2, values, 8);
  for (int i = 0; i < 32; ++i) values[i] *= d;
}

void block_q4_1(const std::byte* block, float* values) {
  const float d = scale(block), m = scale(block + 2);
  unpack_nibbles(block + 4, values, 0);
  for (int i = 0; i < 32; ++i) values[i] = values[i] * d + m;
}

void block_q5_0(const std::byte* block, float* values) {
  const float d = scale(block);
  const auto high = load<uint32_t>(block + 2);
  unpack_nibbles(block + 6, values, 16);
  for (uint32_t i = 0; i < 32; ++i) {
    values[i] = d * (values[i] + static_cast<float>(static_cast<int>((high >> i & 1) << 4)));
  }
}

void block_q8_0(const std::byte* block, float* values) {
  const float d = scale(block);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

// Eight groups of 32 values with 6-bit scales and minima, packed into 12 bytes: of the first four groups in the low six
// bits of bytes 0-3 and 4-7; of the last four in nibbles of bytes 8-11 with their top bits in those of bytes 0-7.
void block_q4_k(const std::byte* block, float* values) {
  const float d = scale(block), smallest = scale(block + 2);
  const auto packed = [&](int i) { return static_cast<unsigned>(block[4 + i]); };
  const std::byte* quants = block + 16;
  for (int group = 0; group < 8; ++group) {
    const int j = group % 4;
    const unsigned factor = group < 4 ? packed(j) & 63 : (packed(8 + j) & 15) | (packed(j) >> 2 & 48);
    const unsigned offset = group < 4 ? packed(4 + j) & 63 : packed(8 + j) >> 4 | (packed(4 + j) >> 2 & 48);
    const float multiplier = d * static_cast<float>(factor), subtracted = smallest * static_cast<float>(offset);
    for (int i = 0; i < 32; ++i) {  // groups 2k and 2k + 1 are the low and high halves of the same bytes
      const auto byte = static_cast<unsigned>(quants[group / 2 * 32 + i]);
      const auto nibble = static_cast<int>(group % 2 == 0 ? byte & 15 : byte >> 4);
      values[group * 32 + i] = multiplier * static_cast<float>(nibble) - subtracted;
    }
  }
}

// Two halves of 128 values in four groups of 32: low four bits in 64 bytes (groups 0 and 1 their low nibbles, 2 and 3
// the high ones), top two bits in 32 bytes; an int8 scale for every 16 values.
void block_q6_k(const std::byte* block, float* values) {
  const float d = scale(block + 208);
  for (int half = 0; half < 2; ++half) {
    const std::byte *low = block + 64 * half, *high = block + 128 + 32 * half;
    for (int group = 0; group < 4; ++group) {
      for (int i = 0; i < 32; ++i) {
        const unsigned nibble = static_cast<unsigned>(low[group % 2 * 32 + i]) >> (group / 2 * 4) & 15;
        const unsigned top = static_cast<unsigned>(high[i]) >> (2 * group) & 3;
        const int place = 128 * half + 32 * group + i;
        const float multiplier = d * static_cast<float>(static_cast<int8_t>(block[192 + place / 16]));
        values[place] = multiplier * static_cast<float>(static_cast<int>(nibble | top << 4) - 32);
      }
    }
  }
}

template <int kValues, int kBytes, void (*block)(const std::byte*, float*)>
void each_block(const std::byte* blocks, int64_t count, float* values) {
  for (int64_t i = 0; i < count / kValues; ++i) block(blocks + i * kBytes, values + i * kValues);
}

}  // namespace

const BlockType* find_block_type(uint32_t type) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const BlockType& t) { return t.type == type; });
  return found == kTypes.end() ? nullptr : &*found;
}

std::string block_type_name(uint32_t type) {
  const char* name = type < kBlockNames.size() ? kBlockNames[type] : nullptr;
  return name == nullptr ? fmt::format("number {}", type) : fmt::format("{} ({})", name, type);
}

std::string supported_block_types() {
  std::string names;
  for (const BlockType& type : kTypes) names += fmt::format("{}{}", names.empty() ? "" : ", ", type.name);
  return names;
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, magnitude = bits & 0x7FFF;
  // Subnormal numbers through an integer: right even where the processor flushes subnormal fp32 numbers.
  const float subnormal = static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f;
  const uint32_t exponent = magnitude >= 0x7C00 ? 0x70000000u : 0x38000000u;  // infinity and NaN stay what they are
  const uint32_t value = magnitude < 0x400 ? std::bit_cast<uint32_t>(subnormal) : (magnitude << 13) + exponent;
  return std::bit_cast<float>(value | sign);
}

void dequantise(uint32_t type, const std::byte* blocks, int64_t count, float* values) {
  switch (type) {
    case kBlockF32: std::memcpy(values, blocks, static_cast<std::size_t>(count) * sizeof(float)); return;
    case kBlockF16:
      for (int64_t i = 0; i < count; ++i) values[i] = half_to_float(load<uint16_t>(blocks + 2 * i));
      return;
    case kBlockBf16:
      for (int64_t i = 0; i < count; ++i) {
        values[i] = std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(blocks + 2 * i)) << 16);
      }
      return;
    case 2: return each_block<32, 18, block_q4_0>(blocks, count, values);
    case 3: return each_block<32, 20, block_q4_1>(blocks, count, values);
    case 6: return each_block<32, 22, block_q5_0>(blocks, count, values);
    case 8: return each_block<32, 34, block_q8_0>(blocks, count, values);
    case 12: return each_block<256, 144, block_q4_k>(blocks, count, values);
    case 14: return each_block<256, 210, block_q6_k>(blocks, count, values);
    default: FL_ASSERT(!"a block type that the container lets through");
  }
}

}  // namespace faultline::model
