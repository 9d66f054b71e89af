// GGUF: keys with typed values, then tensors in blocks. This file reads the container: every length, count, offset and
// type is checked against the file's size before it is used (Note [Mapped files] in base/files/mapped_file.h has the
// rest). What the blocks hold is in gguf_blocks. No torch here: the fuzzer links without it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace faultline::model {

// Integers of all widths are int64 (an unsigned one beyond that is refused), floats are double. Arrays are flat: an
// array of arrays is refused.
using GgufValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<bool>, std::vector<std::string>>;

struct GgufTensor {
  std::vector<int64_t> sizes;        // slowest first, as torch has them
  uint32_t type = 0;                 // one that gguf_blocks knows
  std::span<const std::byte> bytes;  // as many as sizes and type say
};

class GgufFile {
 public:
  // Memory-mapped. RuntimeFailure naming file and field where it is damaged, UsageError where it is sound but of a kind
  // (version, block type) that we do not read.
  explicit GgufFile(const std::filesystem::path& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::filesystem::path& path() const;
  const std::map<std::string, GgufValue>& values() const;
  const std::map<std::string, GgufTensor>& tensors() const;

  // A value that must be there with this type; UsageError naming file and key otherwise.
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  const std::string& text(const std::string& key) const;
  const std::vector<std::string>& texts(const std::string& key) const;
  const GgufValue* find(const std::string& key) const;

  void check_unchanged() const;                         // before tensors' bytes are read
  void forget(std::span<const std::byte> bytes) const;  // pages that need not stay in memory

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The bytes of a GGUF file -> values and tensors. For gguf.cpp and the fuzzer, which has no file.

struct GgufContent {
  std::map<std::string, GgufValue> values;
  std::map<std::string, GgufTensor> tensors;  // their bytes lie within those that were parsed
};

GgufContent parse_gguf(std::span<const std::byte> bytes, const std::string& origin);

}  // namespace faultline::model
