// The bytes of a GGUF file -> values and tensors. For gguf.cpp and the fuzzer, which has no file.
#pragma once

#include <string>

#include "model/gguf.h"

namespace faultline {

struct GgufContent {
  std::map<std::string, GgufValue> values;
  std::map<std::string, GgufTensor> tensors;  // their bytes lie within those that were parsed
};

GgufContent parse_gguf(std::span<const std::byte> bytes, const std::string& origin);

}  // namespace faultline
