#include "model/checkpoint/gguf_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace faultline::model {
namespace {

constexpr BlockType kTypes[] = {
    {kBlockF32, "F32", 1, 4}, {kBlockF16, "F16", 1, 2}, {kBlockBf16, "BF16", 1, 2}, {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},        {8, "Q8_0", 32, 34},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},     {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {20, "IQ4_NL", 32, 18},   {23, "IQ4_XS", 256, 136},   {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36}};

// Names for the refusal; a nullptr was never given or has been withdrawn.
constexpr std::array<const char*, 41> kBlockNames = {
    "F32",   "F16",    "Q4_0",  "Q4_1",  nullptr, nullptr,   "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",   "I64",     "F64",    "IQ1_M",   "BF16",  nullptr,  nullptr,
    nullptr, "TQ1_0",  "TQ2_0", nullptr, nullptr, nullptr,   "MXFP4",  "NVFP4"};

// Twice the values of E2M1, and IQ4's sixteen levels.
constexpr std::array<float, 16> kTwiceE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr std::array<float, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

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

void block_q5_1(const std::byte* block, float* values) {
  const float d = scale(block), m = scale(block + 2);
  const auto high = load<uint32_t>(block + 4);
  unpack_nibbles(block + 8, values, 0);
  for (uint32_t i = 0; i < 32; ++i) {
    values[i] = d * (values[i] + static_cast<float>(static_cast<int>((high >> i & 1) << 4))) + m;
  }
}

void block_q8_0(const std::byte* block, float* values) {
  const float d = scale(block);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

// Value `place` of 256 that lie in two bits each: halves of 128, in each of them four groups of 32 at one shift.
unsigned two_bits(const std::byte* packed, int place) {
  const int half = place / 128, group = place / 32 % 4;
  return static_cast<unsigned>(packed[32 * half + place % 32]) >> (2 * group) & 3;
}

// Sixteen groups of 16 values; a byte for each has a 4-bit scale and a 4-bit minimum.
void block_q2_k(const std::byte* block, float* values) {
  const float d = scale(block + 80), smallest = scale(block + 82);
  for (int i = 0; i < 256; ++i) {
    const auto packed = static_cast<unsigned>(block[i / 16]);
    const float multiplier = d * static_cast<float>(packed & 15),
                subtracted = smallest * static_cast<float>(packed >> 4);
    values[i] = multiplier * static_cast<float>(two_bits(block + 16, i)) - subtracted;
  }
}

// Third bits in 32 bytes, low two bits in 64, sixteen 6-bit scales in 12: low four bits of scale j in a nibble of bytes
// 0-7, top two in bytes 8-11.
void block_q3_k(const std::byte* block, float* values) {
  const float d = scale(block + 108);
  const std::byte* scales = block + 96;
  for (int i = 0; i < 256; ++i) {
    const int j = i / 16;
    const unsigned low = static_cast<unsigned>(scales[j % 8]) >> (j / 8 * 4) & 15;
    const unsigned top = static_cast<unsigned>(scales[8 + j % 4]) >> (j / 4 * 2) & 3;
    const float multiplier = d * static_cast<float>(static_cast<int>(low | top << 4) - 32);
    const unsigned third = static_cast<unsigned>(block[i % 32]) >> (i / 32) & 1;
    const int value = static_cast<int>(two_bits(block + 32, i)) - (third != 0 ? 0 : 4);
    values[i] = multiplier * static_cast<float>(value);
  }
}

// Eight groups of 32 values with 6-bit scales and minima, packed into 12 bytes: of the first four groups in the low six
// bits of bytes 0-3 and 4-7; of the last four in nibbles of bytes 8-11 with their top bits in those of bytes 0-7. Fifth
// bits, where there are any, in 32 bytes, a bit a group.
void block_with_minima(const std::byte* block, const std::byte* fifth, const std::byte* quants, float* values) {
  const float d = scale(block), smallest = scale(block + 2);
  const auto packed = [&](int i) { return static_cast<unsigned>(block[4 + i]); };
  for (int group = 0; group < 8; ++group) {
    const int j = group % 4;
    const unsigned factor = group < 4 ? packed(j) & 63 : (packed(8 + j) & 15) | (packed(j) >> 2 & 48);
    const unsigned offset = group < 4 ? packed(4 + j) & 63 : packed(8 + j) >> 4 | (packed(4 + j) >> 2 & 48);
    const float multiplier = d * static_cast<float>(factor), subtracted = smallest * static_cast<float>(offset);
    for (int i = 0; i < 32; ++i) {  // groups 2k and 2k + 1 are the low and high halves of the same bytes
      const auto byte = static_cast<unsigned>(quants[group / 2 * 32 + i]);
      const unsigned top = fifth == nullptr ? 0 : static_cast<unsigned>(fifth[i]) >> group & 1;
      const unsigned value = (group % 2 == 0 ? byte & 15 : byte >> 4) | top << 4;
      values[group * 32 + i] = multiplier * static_cast<float>(static_cast<int>(value)) - subtracted;
    }
  }
}
void block_q4_k(const std::byte* block, float* values) { block_with_minima(block, nullptr, block + 16, values); }
void block_q5_k(const std::byte* block, float* values) { block_with_minima(block, block + 16, block + 48, values); }

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

// Nibbles that name levels: `count` bytes, their low halves first.
void look_up(const std::byte* packed, int count, const std::array<float, 16>& levels, float factor, float* values) {
  for (int i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned>(packed[i]);
    values[i] = factor * levels[byte & 15];
    values[i + count] = factor * levels[byte >> 4];
  }
}

void block_iq4_nl(const std::byte* block, float* values) { look_up(block + 2, 16, kIq4, scale(block), values); }

// Eight groups of 32 with 6-bit scales: low four bits in nibbles of four bytes, top two in a 16-bit word.
void block_iq4_xs(const std::byte* block, float* values) {
  const float d = scale(block);
  const auto high = load<uint16_t>(block + 2);
  for (int group = 0; group < 8; ++group) {
    const unsigned low = static_cast<unsigned>(block[4 + group / 2]) >> (group % 2 * 4) & 15;
    const unsigned top = static_cast<unsigned>(high) >> (2 * group) & 3;
    const float factor = d * static_cast<float>(static_cast<int>(low | top << 4) - 32);
    look_up(block + 8 + 16 * group, 16, kIq4, factor, values + 32 * group);
  }
}

// Ternary, five values a byte: the byte times 3^k, modulo 256, holds value k in what 3 times it carries over.
void block_tq1_0(const std::byte* block, float* values) {
  constexpr std::array<unsigned, 5> kPowers = {1, 3, 9, 27, 81};
  const float d = scale(block + 52);
  const auto part = [&](const std::byte* bytes, int count, int powers, float* out) {
    for (int k = 0; k < powers; ++k) {
      for (int i = 0; i < count; ++i) {
        const unsigned turned = static_cast<unsigned>(bytes[i]) * kPowers[static_cast<std::size_t>(k)] & 255;
        out[k * count + i] = d * static_cast<float>(static_cast<int>(turned * 3 >> 8) - 1);
      }
    }
  };
  part(block, 32, 5, values), part(block + 32, 16, 5, values + 160), part(block + 48, 4, 4, values + 240);
}

void block_tq2_0(const std::byte* block, float* values) {
  const float d = scale(block + 64);
  for (int i = 0; i < 256; ++i) values[i] = d * static_cast<float>(static_cast<int>(two_bits(block, i)) - 1);
}

// E8M0, halved because the levels are doubled.
void block_mxfp4(const std::byte* block, float* values) {
  const auto e = static_cast<uint32_t>(block[0]);
  look_up(block + 1, 16, kTwiceE2m1, std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23), values);
}

// Four groups of 16 with E4M3 scales, halved likewise; the code of NaN counts as zero.
void block_nvfp4(const std::byte* block, float* values) {
  for (int group = 0; group < 4; ++group) {
    const auto code = static_cast<unsigned>(block[group]), exponent = code >> 3 & 15, mantissa = code & 7;
    const float number = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                       : std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
    look_up(block + 4 + 8 * group, 8, kTwiceE2m1, code == 0x7F ? 0.0f : number * 0.5f, values + 16 * group);
  }
}

template <int kValues, int kBytes, void (*block)(const std::byte*, float*)>
void each_block(const std::byte* blocks, int64_t count, float* values) {
  for (int64_t i = 0; i < count / kValues; ++i) block(blocks + i * kBytes, values + i * kValues);
}

}  // namespace

const BlockType* find_block_type(uint32_t type) {
  const auto* found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const BlockType& t) { return t.type == type; });
  return found == std::end(kTypes) ? nullptr : found;
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
    case 7: return each_block<32, 24, block_q5_1>(blocks, count, values);
    case 8: return each_block<32, 34, block_q8_0>(blocks, count, values);
    case 10: return each_block<256, 84, block_q2_k>(blocks, count, values);
    case 11: return each_block<256, 110, block_q3_k>(blocks, count, values);
    case 12: return each_block<256, 144, block_q4_k>(blocks, count, values);
    case 13: return each_block<256, 176, block_q5_k>(blocks, count, values);
    case 14: return each_block<256, 210, block_q6_k>(blocks, count, values);
    case 20: return each_block<32, 18, block_iq4_nl>(blocks, count, values);
    case 23: return each_block<256, 136, block_iq4_xs>(blocks, count, values);
    case 34: return each_block<256, 54, block_tq1_0>(blocks, count, values);
    case 35: return each_block<256, 66, block_tq2_0>(blocks, count, values);
    case 39: return each_block<32, 17, block_mxfp4>(blocks, count, values);
    case 40: return each_block<64, 36, block_nvfp4>(blocks, count, values);
    default: FL_ASSERT(!"a block type that the container lets through");
  }
}

}  // namespace faultline::model
