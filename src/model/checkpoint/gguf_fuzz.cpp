// Fuzzes the GGUF container and its blocks. The first byte chooses: the bytes as a file, or as a file whose counts of
// keys and tensors are repaired from them (random bytes seldom have a sound start). Every tensor that the parser lets
// through is dequantised whole, from memory without anything after it, so that one byte too far is a finding. What is
// sound goes on into the readers of its keys: the model's configuration and the tokenizer, which encodes a text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_blocks.h"
#include "model/config.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace {

using namespace faultline;
using namespace faultline::model;

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const std::vector<std::byte>& file) {
  const GgufContent content = parse_gguf(file, "fuzz.gguf");
  for (const auto& [name, tensor] : content.tensors) {
    require(tensor.bytes.data() >= file.data() &&
            tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size());
    const BlockType* block = find_block_type(tensor.type);
    require(block != nullptr);
    int64_t count = 1;
    for (const int64_t size : tensor.sizes) count *= size;
    require(static_cast<uint64_t>(count / block->values * block->bytes) == tensor.bytes.size());
    std::vector<float> values(static_cast<std::size_t>(count));
    dequantise(tensor.type, tensor.bytes.data(), count, values.data());
  }
}

void check_config_of(const std::vector<std::byte>& file) {
  static const FuzzFolder folder;
  const GgufFile gguf(folder.write("fuzz.gguf", {reinterpret_cast<const char*>(file.data()), file.size()}));
  const ModelConfig config = read_config(gguf);
  check_config(config, "fuzz");
  require(to_config_json(read_config(to_config_json(config), "again")) == to_config_json(config));
}

void check_tokenizer_of(const std::vector<std::byte>& file) {
  const Tokenizer tokenizer = Tokenizer::from_spec(read_tokenizer_values(parse_gguf(file, "fuzz").values, "fuzz"));
  const std::string text = tokenizer.decode(tokenizer.encode("A 12 b\n"));
  (void)tokenizer.encode(text);
}

}  // namespace

FAULTLINE_FUZZ_TARGET(gguf_fuzz)(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file;
  if (data[0] % 2 == 0) {
    file.assign(bytes + 1, bytes + size);
  } else {
    const uint64_t start[3] = {uint64_t{3} << 32 | 0x46554747, data[1] % 4U, data[2] % 6U};
    file.resize(sizeof start);
    std::memcpy(file.data(), start, sizeof start);
    file.insert(file.end(), bytes + 3, bytes + size);
  }
  file.shrink_to_fit();
  for (void (*step)(const std::vector<std::byte>&) : {check, check_config_of, check_tokenizer_of}) {
    try {
      step(file);
    } catch (const Error&) {
      if (step == check) return 0;
    }
  }
  return 0;
}
