// The GGUF container: what is sound is read, everything else is refused by a sentence, and nothing crashes.
#include "model/checkpoint/gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "base/files/temporary_folder.h"
#include "model/checkpoint/gguf_blocks.h"
#include "model/checkpoint/gguf_builder.h"

namespace faultline::model {
namespace gguf_test {

GgufContent parse(const std::string& bytes) { return parse_gguf(std::as_bytes(std::span(bytes)), "x.gguf"); }

std::string refusal(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("x.gguf: ")) << error.what();
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::string& bytes, const std::string& words) {
  EXPECT_NE(refusal(bytes).find(words), std::string::npos) << words << ": " << refusal(bytes);
}
void expect_refused(const GgufBuilder& builder, const std::string& words) { expect_refused(builder.bytes(), words); }

template <typename T>
std::string raw(T value) {
  return GgufBuilder::raw(value);
}

GgufBuilder sound() {
  GgufBuilder builder;
  builder.string("name", "x").integer("count", 7).number("ratio", 0.25F);
  builder.key("yes", raw<uint32_t>(7) + raw<uint8_t>(1));
  builder.key("words", raw<uint32_t>(9) + raw<uint32_t>(8) + raw<uint64_t>(2) + GgufBuilder::text("a") +
                           GgufBuilder::text("bc"));
  builder.key("bytes", raw<uint32_t>(9) + raw<uint32_t>(1) + raw<uint64_t>(3) + raw<int8_t>(-1) + "\1\2");
  builder.tensor("w", {8, 2}, 0, floats(16)).tensor("q", {32, 2}, 8, std::string(68, '\1'));
  return builder;
}

TEST(Gguf, ReadsKeysAndTensors) {
  const TemporaryFolder folder;
  const GgufFile file(write_bytes(folder.path() / "x.gguf", sound().bytes()));
  EXPECT_EQ(file.text("name"), "x");
  EXPECT_EQ(file.integer("count"), 7);
  EXPECT_EQ(file.number("ratio"), 0.25);
  EXPECT_EQ(file.number("count"), 7);
  EXPECT_EQ(std::get<bool>(*file.find("yes")), true);
  EXPECT_EQ(file.texts("words"), (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(std::get<std::vector<int64_t>>(*file.find("bytes")), (std::vector<int64_t>{-1, 1, 2}));
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_EQ(file.tensors().at("w").sizes, (std::vector<int64_t>{2, 8}));
  EXPECT_EQ(file.tensors().at("q").bytes.size(), 68U);
  EXPECT_THROW(file.integer("name"), UsageError);
  EXPECT_THROW(file.text("nothing"), UsageError);
}

TEST(Gguf, RefusesEveryPrefixOfASoundFile) {
  const std::string bytes = sound().bytes();
  ASSERT_EQ(refusal(bytes), "accepted");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(refusal(bytes.substr(0, size)), "accepted") << size;
  }
}

TEST(Gguf, SurvivesBitFlipsAndRandomNumbersInEveryField) {
  const std::string bytes = sound().bytes();
  std::mt19937_64 random(5);
  int accepted = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string broken = bytes;
    const std::size_t place = random() % broken.size();
    if (trial % 2 == 0) {
      broken[place] = static_cast<char>(broken[place] ^ 1 << random() % 8);
    } else {
      const std::string number = raw<uint64_t>(~uint64_t{0} >> random() % 64);
      broken.replace(place, 8, number).resize(bytes.size(), '\0');
    }
    accepted += refusal(broken) == "accepted" ? 1 : 0;
  }
  EXPECT_GT(accepted, 100);  // flips in names and data do no harm
  EXPECT_LT(accepted, 19000);
}

TEST(Gguf, RefusesWhatIsNotGguf) {
  expect_refused("PK\3\4 something else", "does not begin with GGUF");
  expect_refused("GGUF" + raw<uint32_t>(1) + std::string(16, '\0'), "version 1");
  expect_refused("GGUF" + raw<uint32_t>(0x03000000) + std::string(16, '\0'), "big-endian");
}

TEST(Gguf, RefusesACountBeyondTheFile) {
  const std::string start = "GGUF" + raw<uint32_t>(3);
  for (const uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 61, ~uint64_t{0}}) {
    expect_refused(start + raw(count) + raw<uint64_t>(0), "number of tensors");
    expect_refused(start + raw<uint64_t>(0) + raw(count), "number of keys");
    for (const uint32_t type : {0U, 2U, 4U, 6U, 7U, 8U, 12U}) {
      expect_refused(GgufBuilder().key("k", raw<uint32_t>(9) + raw(type) + raw(count)), "number of items of key 'k'");
    }
    expect_refused(GgufBuilder().key("k", raw<uint32_t>(8) + raw(count)), "key 'k'");
  }
}

TEST(Gguf, RefusesBadValues) {
  expect_refused(GgufBuilder().key("k", raw<uint32_t>(13) + raw<uint64_t>(0)), "unknown type 13");
  expect_refused(GgufBuilder().key("k", raw<uint32_t>(9) + raw<uint32_t>(13) + raw<uint64_t>(0)), "unknown type 13");
  expect_refused(GgufBuilder().key("k", raw<uint32_t>(7) + raw<uint8_t>(2)), "truth value");
  expect_refused(GgufBuilder().key("k", raw<uint32_t>(10) + raw(~uint64_t{0})), "2^63");
  expect_refused(GgufBuilder().integer("k", 1).integer("k", 2), "key 'k' occurs twice");
  std::string deep = raw<uint32_t>(9);
  for (int i = 0; i < 1000; ++i) deep += raw<uint32_t>(9) + raw<uint64_t>(1);
  expect_refused(GgufBuilder().key("k", deep), "array of arrays");
  for (const uint32_t alignment : {0U, 1U, 24U, 1U << 30}) {
    expect_refused(GgufBuilder().integer("general.alignment", alignment), "general.alignment");
  }
  expect_refused(GgufBuilder().string("general.alignment", "32"), "general.alignment");
}

TEST(Gguf, RefusesBadTensors) {
  const auto with = [](const std::vector<int64_t>& sizes, uint32_t type, uint64_t offset, std::size_t bytes = 256) {
    return GgufBuilder().tensor_at("w", sizes, type, offset).append(std::string(bytes, '\0'));
  };
  EXPECT_EQ(refusal(with({8, 8}, 0, 0).bytes()), "accepted");
  expect_refused(with({}, 0, 0), "0 dimensions");
  expect_refused(with({1, 1, 1, 1, 1}, 0, 0), "5 dimensions");
  expect_refused(with({-8, 8}, 0, 0), "size of -8");
  expect_refused(with({0}, 0, 0), "size of 0");
  expect_refused(with({int64_t{1} << 40, int64_t{1} << 40}, 0, 0), "overflow");
  expect_refused(with({int64_t{1} << 62}, 0, 0), "overflow");
  expect_refused(with({8, 8}, 0, 1), "not a multiple of 32");
  expect_refused(with({8, 8}, 0, 32), "the data has 256");
  expect_refused(with({8, 8}, 0, ~uint64_t{31}), "the data has 256");
  expect_refused(with({8, 9}, 0, 0), "the data has 256");
  expect_refused(with({33}, 8, 0), "not a multiple of the 32");
  expect_refused(with({128}, 12, 0), "not a multiple of the 256");
  expect_refused(with({256}, 21, 0), "IQ3_S (21)");
  expect_refused(with({256}, 4, 0), "number 4");
  expect_refused(with({256}, 4000, 0), "number 4000; supported are F32");
  expect_refused(with({8, 8}, 0, 0).tensor_at("v", {8}, 0, 32), "overlaps");
  expect_refused(with({8, 4}, 0, 0).tensor_at("w", {8}, 0, 128), "tensor 'w' occurs twice");
}

TEST(Gguf, NoticesAFileThatWasCutAfterItWasOpened) {
  const TemporaryFolder folder;
  const auto path = write_bytes(folder.path() / "x.gguf", sound().bytes());
  const GgufFile file(path);
  file.check_unchanged();
  std::filesystem::resize_file(path, 100);
  EXPECT_THROW(file.check_unchanged(), RuntimeFailure);
}

TEST(Gguf, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  EXPECT_THROW(GgufFile(folder.path() / "no.gguf"), RuntimeFailure);
  EXPECT_THROW(GgufFile{folder.path()}, UsageError);
  EXPECT_THROW(GgufFile(write_bytes(folder.path() / "empty.gguf", "")), RuntimeFailure);
}

TEST(GgufBlocks, ConvertsEveryHalf) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double mantissa = bits & 1023, sign = (bits & 0x8000) != 0 ? -1 : 1;
    const float value = half_to_float(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
    } else {
      const double wanted = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(value, sign * wanted) << bits;
      ASSERT_EQ(std::signbit(value), sign < 0) << bits;
    }
  }
}

}  // namespace gguf_test
}  // namespace faultline::model
