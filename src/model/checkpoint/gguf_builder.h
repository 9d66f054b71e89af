// For tests: GGUF files byte by byte, right or wrong in whatever way a test wants.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace faultline::model {

class GgufBuilder {
 public:
  template <typename T>
  static std::string raw(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  static std::string text(const std::string& value) { return raw<uint64_t>(value.size()) + value; }

  // `value`: type and bytes.
  GgufBuilder& key(const std::string& name, const std::string& value) {
    keys_.push_back(text(name) + value);
    return *this;
  }
  GgufBuilder& integer(const std::string& name, uint32_t value) {
    return key(name, raw<uint32_t>(4) + raw<uint32_t>(value));
  }
  GgufBuilder& number(const std::string& name, float value) { return key(name, raw<uint32_t>(6) + raw<float>(value)); }
  GgufBuilder& string(const std::string& name, const std::string& value) {
    return key(name, raw<uint32_t>(8) + text(value));
  }

  // sizes: fastest first, as the file has them. The offset is the next free multiple of 32.
  GgufBuilder& tensor(const std::string& name, const std::vector<int64_t>& sizes, uint32_t type,
                      const std::string& bytes) {
    data_.resize((data_.size() + 31) / 32 * 32, '\0');
    return tensor_at(name, sizes, type, data_.size()).append(bytes);
  }
  GgufBuilder& tensor_at(const std::string& name, const std::vector<int64_t>& sizes, uint32_t type, uint64_t offset) {
    std::string entry = text(name) + raw<uint32_t>(static_cast<uint32_t>(sizes.size()));
    for (const int64_t size : sizes) entry += raw<int64_t>(size);
    tensors_.push_back(entry + raw<uint32_t>(type) + raw<uint64_t>(offset));
    return *this;
  }
  GgufBuilder& append(const std::string& bytes) {
    data_ += bytes;
    return *this;
  }

  std::string bytes() const {
    std::string file = "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(tensors_.size()) + raw<uint64_t>(keys_.size());
    for (const std::string& key : keys_) file += key;
    for (const std::string& tensor : tensors_) file += tensor;
    file.resize((file.size() + 31) / 32 * 32, '\0');
    return file + data_;
  }

 private:
  std::vector<std::string> keys_, tensors_;
  std::string data_;
};

inline std::string floats(std::size_t count, float value = 0.5F) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += GgufBuilder::raw(value);
  return bytes;
}

// A llama of one layer: hidden 4, two heads of 2, one kv head, inner 6, vocabulary 5; every tensor F32.
inline GgufBuilder tiny_llama() {
  GgufBuilder builder;
  builder.string("general.architecture", "llama").integer("llama.block_count", 1).integer("llama.context_length", 16);
  builder.integer("llama.embedding_length", 4).integer("llama.feed_forward_length", 6);
  builder.integer("llama.attention.head_count", 2).integer("llama.attention.head_count_kv", 1);
  builder.number("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  builder.tensor("token_embd.weight", {4, 5}, 0, floats(20)).tensor("output_norm.weight", {4}, 0, floats(4));
  builder.tensor("blk.0.attn_norm.weight", {4}, 0, floats(4)).tensor("blk.0.ffn_norm.weight", {4}, 0, floats(4));
  builder.tensor("blk.0.attn_q.weight", {4, 4}, 0, floats(16)).tensor("blk.0.attn_k.weight", {4, 2}, 0, floats(8));
  builder.tensor("blk.0.attn_v.weight", {4, 2}, 0, floats(8)).tensor("blk.0.attn_output.weight", {4, 4}, 0, floats(16));
  builder.tensor("blk.0.ffn_gate.weight", {4, 6}, 0, floats(24)).tensor("blk.0.ffn_up.weight", {4, 6}, 0, floats(24));
  builder.tensor("blk.0.ffn_down.weight", {6, 4}, 0, floats(24));
  return builder;
}

inline std::filesystem::path write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

}  // namespace faultline::model
