#include "base/files/archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/error.h"

namespace faultline {
namespace {

constexpr size_t kTarBlock = 512, kTarName = 100, kTarPrefix = 155;

// Where the name is cut in two, so that either part has room; npos: nowhere. 0: it need not be cut.
size_t tar_cut(std::string_view name) {
  if (name.size() <= kTarName) return 0;
  for (size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', slash + 1))
    if (slash > 0 && slash <= kTarPrefix && name.size() - slash - 1 <= kTarName && slash + 1 < name.size())
      return slash;
  return std::string_view::npos;
}

std::string tar_header(std::string_view name, size_t size) {
  std::string header(kTarBlock, '\0');
  const auto put = [&](size_t at, std::string_view text) { header.replace(at, text.size(), text); };
  const size_t cut = tar_cut(name);
  put(0, cut == 0 ? name : name.substr(cut + 1));
  put(100, "0000644");
  for (const size_t owner : {size_t{108}, size_t{116}}) put(owner, "0000000");
  put(124, fmt::format("{:011o}", size));
  put(136, "00000000000");
  put(148, "        ");
  put(156, "0");
  put(257, std::string_view("ustar\0"
                            "00",
                            8));
  if (cut != 0) put(345, name.substr(0, cut));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum));
  header[154] = '\0';
  return header;
}

constexpr std::array<uint16_t, 29> kLengthBase = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                                  31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr std::array<uint8_t, 29> kLengthBits = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr std::array<uint16_t, 30> kDistanceBase = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                                    33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                                    1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};

// The fixed code of RFC 1951, 3.2.6, and back references found by hash chains.
class Deflater {
 public:
  explicit Deflater(std::string_view bytes) : bytes_(bytes), before_(bytes.size(), kNone) {}

  std::string run() {
    put(0b011, 3);  // the last block, fixed code
    for (size_t at = 0; at < bytes_.size();) {
      const auto [length, distance] = longest_match(at);
      if (length >= kShortest) {
        put_match(length, distance);
      } else {
        put_symbol(static_cast<unsigned char>(bytes_[at]));
      }
      for (const size_t end = at + std::max<size_t>(length >= kShortest ? length : 1, 1); at < end; ++at) remember(at);
    }
    put_symbol(256);
    put(0, 7);  // to the byte's end
    return std::move(out_);
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr size_t kShortest = 3, kLongest = 258, kWindow = 32768, kTries = 32;

  struct Match {
    size_t length = 0, distance = 0;
  };

  size_t hash_at(size_t at) const {
    uint32_t word = 0;
    for (size_t i = 0; i < kShortest; ++i) word = word << 8 | static_cast<unsigned char>(bytes_[at + i]);
    return word * 2654435761u >> 17;
  }

  void remember(size_t at) {
    if (at + kShortest > bytes_.size()) return;
    uint32_t& last = last_[hash_at(at)];
    before_[at] = last;
    last = static_cast<uint32_t>(at);
  }

  Match longest_match(size_t at) const {
    Match best;
    if (at + kShortest > bytes_.size()) return best;
    const size_t most = std::min(kLongest, bytes_.size() - at);
    uint32_t candidate = last_[hash_at(at)];
    for (size_t tries = 0; candidate != kNone && at - candidate <= kWindow && tries < kTries;
         candidate = before_[candidate], ++tries) {
      size_t length = 0;
      while (length < most && bytes_[candidate + length] == bytes_[at + length]) ++length;
      if (length > best.length) best = {length, at - candidate};
    }
    return best;
  }

  void put(uint32_t value, int bits) {
    waiting_ |= static_cast<uint64_t>(value) << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, waiting_ >>= 8) out_ += static_cast<char>(waiting_ & 0xff);
  }

  void put_code(uint32_t code, int bits) {  // codes go out from their highest bit on
    uint32_t turned = 0;
    for (int i = 0; i < bits; ++i) turned = turned << 1 | (code >> i & 1u);
    put(turned, bits);
  }

  void put_symbol(uint32_t symbol) {
    if (symbol < 144)
      put_code(0x30 + symbol, 8);
    else if (symbol < 256)
      put_code(0x190 + symbol - 144, 9);
    else if (symbol < 280)
      put_code(symbol - 256, 7);
    else
      put_code(0xC0 + symbol - 280, 8);
  }

  void put_match(size_t length, size_t distance) {
    size_t row = kLengthBase.size() - 1;
    while (kLengthBase[row] > length) --row;
    put_symbol(static_cast<uint32_t>(257 + row));
    put(static_cast<uint32_t>(length - kLengthBase[row]), kLengthBits[row]);
    row = kDistanceBase.size() - 1;
    while (kDistanceBase[row] > distance) --row;
    put_code(static_cast<uint32_t>(row), 5);
    put(static_cast<uint32_t>(distance - kDistanceBase[row]), row < 2 ? 0 : static_cast<int>(row / 2 - 1));
  }

  std::string_view bytes_;
  std::vector<uint32_t> before_, last_ = std::vector<uint32_t>(32768, kNone);  // by position, by hash
  std::string out_;
  uint64_t waiting_ = 0;
  int count_ = 0;
};

uint32_t crc32(std::string_view bytes) {  // of gzip: another polynomial than that of our event logs
  static const auto table = [] {
    std::array<uint32_t, 256> rows{};
    for (uint32_t i = 0; i < rows.size(); ++i) {
      uint32_t row = i;
      for (int bit = 0; bit < 8; ++bit) row = row >> 1 ^ (row & 1u ? 0xEDB88320u : 0u);
      rows[i] = row;
    }
    return rows;
  }();
  uint32_t sum = ~uint32_t{0};
  for (const char c : bytes) sum = sum >> 8 ^ table[(sum ^ static_cast<unsigned char>(c)) & 0xff];
  return ~sum;
}

std::string four_bytes(uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

}  // namespace

bool fits_tar_name(std::string_view name) {
  return !name.empty() && !name.starts_with('/') && tar_cut(name) != std::string_view::npos;
}

std::string tar_archive(const std::map<std::string, std::string>& files) {
  std::string archive;
  for (const auto& [name, content] : files) {
    FL_ASSERT(fits_tar_name(name));
    archive += tar_header(name, content.size());
    archive += content;
    archive.append((kTarBlock - content.size() % kTarBlock) % kTarBlock, '\0');
  }
  archive.append(2 * kTarBlock, '\0');
  return archive;
}

std::string gzip_compressed(std::string_view bytes) {
  FL_ASSERT(bytes.size() < (uint64_t{1} << 32));
  constexpr std::string_view kHeader("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);  // no time, no name, no system
  return std::string(kHeader) + Deflater(bytes).run() + four_bytes(crc32(bytes)) +
         four_bytes(static_cast<uint32_t>(bytes.size()));
}

}  // namespace faultline
