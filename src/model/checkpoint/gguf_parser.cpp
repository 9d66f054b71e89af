// Layout, all little-endian: "GGUF", u32 version, i64 tensors, i64 keys; each key = string, i32 type, value; each
// tensor = string, u32 dimensions, i64 sizes (fastest first), i32 type, u64 offset; padding; data. Nothing is reserved
// for a count before the file is seen to be long enough for it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_blocks.h"

namespace faultline::model {
namespace {

enum Type : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
constexpr uint64_t kMaxNameBytes = 65535;  // of a key or tensor; the specification's limit for keys
constexpr uint32_t kMaxDimensions = 4;     // as ggml has it
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;

uint64_t smallest_size(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool: return 1;
    case kU16:
    case kI16: return 2;
    case kU32:
    case kI32:
    case kF32: return 4;
    default: return 8;  // a string has at least its length
  }
}

// Where we are in the file, and what we are reading, for the sentence.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& origin) : bytes_(bytes), origin_(origin) {}

  [[noreturn]] void damaged(const std::string& complaint) const {
    throw RuntimeFailure(fmt::format("{}: damaged or not a GGUF file: {}", origin_, complaint));
  }
  [[noreturn]] void unsupported(const std::string& complaint) const {
    throw UsageError(fmt::format("{}: {}", origin_, complaint));
  }

  uint64_t place() const { return place_; }
  uint64_t left() const { return bytes_.size() - place_; }

  template <typename T>
  T number(std::string_view what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, bytes_.data() + place_, sizeof value);
    place_ += sizeof value;
    return value;
  }

  std::string text(std::string_view what, uint64_t longest = std::numeric_limits<uint64_t>::max()) {
    const auto size = number<uint64_t>(what);
    if (size > longest) damaged(fmt::format("{} has {} bytes; {} are allowed", what, size, longest));
    need(size, what);
    const char* begin = reinterpret_cast<const char*>(bytes_.data()) + place_;
    place_ += size;
    return {begin, begin + size};
  }

  // A count of things that take at least `smallest` bytes each.
  uint64_t count(uint64_t smallest, std::string_view what) {
    const auto value = number<uint64_t>(what);
    if (value > left() / smallest) {
      damaged(fmt::format("{} is {}, for which the {} bytes that follow are too few", what, value, left()));
    }
    return value;
  }

 private:
  void need(uint64_t count, std::string_view what) const {
    if (count > left()) damaged(fmt::format("it ends within {}: {} bytes from byte {} on", what, count, place_));
  }

  std::span<const std::byte> bytes_;
  const std::string& origin_;
  uint64_t place_ = 0;
};

int64_t read_integer(Reader& reader, uint32_t type, const std::string& what) {
  switch (type) {
    case kU8: return reader.number<uint8_t>(what);
    case kI8: return reader.number<int8_t>(what);
    case kU16: return reader.number<uint16_t>(what);
    case kI16: return reader.number<int16_t>(what);
    case kU32: return reader.number<uint32_t>(what);
    case kI32: return reader.number<int32_t>(what);
    case kI64: return reader.number<int64_t>(what);
    default: break;
  }
  const auto value = reader.number<uint64_t>(what);
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    reader.damaged(fmt::format("{} is {}, more than 2^63 - 1", what, value));
  }
  return static_cast<int64_t>(value);
}

bool read_bool(Reader& reader, const std::string& what) {
  const auto value = reader.number<uint8_t>(what);
  if (value > 1) reader.damaged(fmt::format("{} is a truth value of {}", what, value));
  return value == 1;
}

double read_float(Reader& reader, uint32_t type, const std::string& what) {
  return type == kF32 ? static_cast<double>(reader.number<float>(what)) : reader.number<double>(what);
}

template <typename T, typename Read>
GgufValue read_items(uint64_t count, Read&& read) {
  std::vector<T> items;
  items.reserve(count);  // Reader::count has seen that the file is long enough
  for (uint64_t i = 0; i < count; ++i) items.push_back(read());
  return items;
}

GgufValue read_array(Reader& reader, const std::string& what) {
  const auto type = reader.number<uint32_t>(what);
  if (type == kArray) reader.damaged(fmt::format("{} is an array of arrays", what));
  if (type > kF64) reader.damaged(fmt::format("{} is an array of the unknown type {}", what, type));
  const uint64_t count = reader.count(smallest_size(type), fmt::format("the number of items of {}", what));
  switch (type) {
    case kF32:
    case kF64: return read_items<double>(count, [&] { return read_float(reader, type, what); });
    case kBool: return read_items<bool>(count, [&] { return read_bool(reader, what); });
    case kString: return read_items<std::string>(count, [&] { return reader.text(what); });
    default: return read_items<int64_t>(count, [&] { return read_integer(reader, type, what); });
  }
}

GgufValue read_value(Reader& reader, const std::string& what) {
  const auto type = reader.number<uint32_t>(what);
  switch (type) {
    case kF32:
    case kF64: return read_float(reader, type, what);
    case kBool: return read_bool(reader, what);
    case kString: return reader.text(what);
    case kArray: return read_array(reader, what);
    default: break;
  }
  if (type > kF64) reader.damaged(fmt::format("{} has the unknown type {}", what, type));
  return read_integer(reader, type, what);
}

struct Placed {
  std::string name;
  GgufTensor tensor;
  uint64_t offset = 0, bytes = 0;
};

// Bytes of a tensor whose rows are whole blocks.
uint64_t tensor_bytes(const Reader& reader, const Placed& placed) {
  const BlockType* block = find_block_type(placed.tensor.type);
  if (block == nullptr) {
    reader.unsupported(fmt::format("tensor '{}' has the block type {}; supported are {}", placed.name,
                                   block_type_name(placed.tensor.type), supported_block_types()));
  }
  if (placed.tensor.sizes.back() % block->values != 0) {
    reader.damaged(fmt::format("tensor '{}' has rows of {} values, not a multiple of the {} in a block of {}",
                               placed.name, placed.tensor.sizes.back(), block->values, block->name));
  }
  int64_t values = 1, bytes = 0;
  bool overflow = false;
  for (const int64_t size : placed.tensor.sizes) overflow = __builtin_mul_overflow(values, size, &values) || overflow;
  overflow = overflow || __builtin_mul_overflow(values / block->values, block->bytes, &bytes);
  if (overflow) reader.damaged(fmt::format("the sizes of tensor '{}' overflow 64 bits", placed.name));
  return static_cast<uint64_t>(bytes);
}

Placed read_tensor(Reader& reader, uint64_t alignment) {
  Placed placed{reader.text("a tensor's name", kMaxNameBytes), {}, 0, 0};
  const std::string what = fmt::format("tensor '{}'", placed.name);
  const auto dimensions = reader.number<uint32_t>(what);
  if (dimensions == 0 || dimensions > kMaxDimensions) {
    reader.damaged(fmt::format("{} has {} dimensions; 1 to {} are allowed", what, dimensions, kMaxDimensions));
  }
  for (uint32_t i = 0; i < dimensions; ++i) {
    placed.tensor.sizes.push_back(reader.number<int64_t>(what));
    if (placed.tensor.sizes.back() <= 0) {
      reader.damaged(fmt::format("{} has a size of {}", what, placed.tensor.sizes.back()));
    }
  }
  std::reverse(placed.tensor.sizes.begin(), placed.tensor.sizes.end());
  placed.tensor.type = reader.number<uint32_t>(what);
  placed.offset = reader.number<uint64_t>(what);
  if (placed.offset % alignment != 0) {
    reader.damaged(fmt::format("{} starts at byte {}, not a multiple of {}", what, placed.offset, alignment));
  }
  placed.bytes = tensor_bytes(reader, placed);
  return placed;
}

uint64_t read_alignment(const Reader& reader, const std::map<std::string, GgufValue>& values) {
  const auto found = values.find("general.alignment");
  if (found == values.end()) return 32;
  const auto* value = std::get_if<int64_t>(&found->second);
  const bool fine =
      value != nullptr && *value >= 8 && *value <= static_cast<int64_t>(kMaxAlignment) && (*value & (*value - 1)) == 0;
  if (!fine) reader.damaged(fmt::format("general.alignment is not a power of two from 8 to {}", kMaxAlignment));
  return static_cast<uint64_t>(*value);
}

// Tensors may have padding between them; what they share would be a mistake or an attack.
void place_tensors(const Reader& reader, std::vector<Placed>& tensors, std::span<const std::byte> data) {
  std::sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
  uint64_t end = 0;
  for (Placed& placed : tensors) {
    if (placed.offset > data.size() || placed.bytes > data.size() - placed.offset) {
      reader.damaged(fmt::format("tensor '{}' has {} bytes from byte {} on; the data has {}", placed.name, placed.bytes,
                                 placed.offset, data.size()));
    }
    if (placed.offset < end) reader.damaged(fmt::format("tensor '{}' overlaps another", placed.name));
    end = placed.offset + placed.bytes;
    placed.tensor.bytes = data.subspan(placed.offset, placed.bytes);
  }
}

void read_start(Reader& reader) {
  if (reader.left() < 4 || reader.number<uint32_t>("the magic") != 0x46554747) {
    reader.damaged("it does not begin with GGUF");
  }
  const auto version = reader.number<uint32_t>("the version");
  if ((version & 0xFFFF) == 0 && version != 0) reader.unsupported("a GGUF file for big-endian machines; convert it");
  if (version != 2 && version != 3) {
    reader.unsupported(fmt::format("GGUF version {}; versions 2 and 3 are supported", version));
  }
}

}  // namespace

GgufContent parse_gguf(std::span<const std::byte> bytes, const std::string& origin) {
  Reader reader(bytes, origin);
  read_start(reader);
  constexpr uint64_t kSmallestTensor = 8 + 4 + 8 + 4 + 8, kSmallestKey = 8 + 4 + 1;
  const uint64_t tensor_count = reader.count(kSmallestTensor, "the number of tensors");
  const uint64_t key_count = reader.count(kSmallestKey, "the number of keys");
  GgufContent content;
  for (uint64_t i = 0; i < key_count; ++i) {
    const std::string key = reader.text("a key", kMaxNameBytes);
    GgufValue value = read_value(reader, fmt::format("key '{}'", key));
    if (!content.values.emplace(key, std::move(value)).second) {
      reader.damaged(fmt::format("key '{}' occurs twice", key));
    }
  }
  const uint64_t alignment = read_alignment(reader, content.values);
  std::vector<Placed> tensors;
  for (uint64_t i = 0; i < tensor_count; ++i) tensors.push_back(read_tensor(reader, alignment));
  const uint64_t start = (reader.place() + alignment - 1) / alignment * alignment;
  place_tensors(reader, tensors, bytes.subspan(std::min<uint64_t>(start, bytes.size())));
  for (Placed& placed : tensors) {
    if (!content.tensors.emplace(placed.name, std::move(placed.tensor)).second) {
      reader.damaged(fmt::format("tensor '{}' occurs twice", placed.name));
    }
  }
  return content;
}

}  // namespace faultline::model
