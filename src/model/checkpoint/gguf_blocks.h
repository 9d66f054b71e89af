// What the bytes of a GGUF tensor mean: numbers in blocks that share a scale. Arithmetic is fp32, one multiplication
// and at most one addition a value, in the order of the GGUF specification, so that results are equal to the bit
// everywhere. No torch here: the container's fuzzer reads blocks too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace faultline::model {

struct BlockType {
  uint32_t type;  // as the file has it
  const char* name;
  int64_t values;  // a block's values
  int64_t bytes;   // a block's bytes
};

constexpr uint32_t kBlockF32 = 0, kBlockF16 = 1, kBlockBf16 = 30;

const BlockType* find_block_type(uint32_t type);  // nullptr: one we cannot read
std::string block_type_name(uint32_t type);       // also of those we cannot read: "Q5_K (13)"
std::string supported_block_types();              // "F32, F16, …"

// `count` values, a multiple of the block's, from `blocks`, which need no alignment.
void dequantise(uint32_t type, const std::byte* blocks, int64_t count, float* values);

float half_to_float(uint16_t bits);

}  // namespace faultline::model
