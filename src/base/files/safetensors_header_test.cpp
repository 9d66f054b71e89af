// The safetensors container: what is written reads the same, every prefix and every hostile entry is refused.
#include "base/files/safetensors_header.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace faultline {
namespace safetensors_header_test {

std::string refusal(const std::string& header, uint64_t data_size) {
  try {
    parse_safetensors_header(header, data_size, "x.safetensors");
  } catch (const RuntimeFailure& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("x.safetensors")) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(SafetensorsHeader, ReadsWhatItWrote) {
  std::vector<SafetensorsEntry> entries = {{"b", "F32", {2, 3}}, {"a \"quoted\"", "BF16", {5}}, {"empty", "F32", {0}}};
  const std::string file = make_safetensors_header(entries, {24, 10, 0}, {{"format", "pt"}});
  EXPECT_EQ(file.size() % 8, 0U);
  const uint64_t size = safetensors_header_size(file.substr(0, 8), file.size() + 34, "x");
  ASSERT_EQ(size, file.size() - 8);
  const auto again = parse_safetensors_header(file.substr(8), 34, "x");
  ASSERT_EQ(again.size(), 3U);
  EXPECT_EQ(again[0].name, "a \"quoted\"");
  EXPECT_EQ(again[0].begin, 24U);
  EXPECT_EQ(again[1].sizes, (std::vector<int64_t>{2, 3}));
  EXPECT_NO_THROW(check_safetensors_bytes(again[1], 4, "x"));
  EXPECT_THROW(check_safetensors_bytes(again[1], 2, "x"), RuntimeFailure);
  for (uint64_t cut = 0; cut < file.size() + 34; ++cut) {
    const std::string prefix = file.substr(0, std::min<uint64_t>(cut, 8));
    EXPECT_THROW(
        {
          const uint64_t header = safetensors_header_size(prefix, cut, "x");
          parse_safetensors_header(file.substr(8, header), cut - 8 - header, "x");
        },
        RuntimeFailure)
        << cut;
  }
}

TEST(SafetensorsHeader, RefusesHostileEntries) {
  const auto entry = [](const char* offsets, const char* shape = "[4]") {
    return std::string(R"({"a":{"dtype":"F32","shape":)") + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(refusal(entry("[0,16]"), 16), "accepted");
  for (const char* offsets : {"[0,17]", "[16,0]", "[-1,16]", "[0,18446744073709551615]", "[1,16]", "[0,15]", "[0]",
                              "[0,16,16]", "\"0\"", "[0.0,16.0]", "null"}) {
    EXPECT_NE(refusal(entry(offsets), 16), "accepted") << offsets;
  }
  for (const char* shape : {"[-4]", "4", "[4.0]", "[[4]]", "[18446744073709551615]"}) {
    EXPECT_NE(refusal(entry("[0,16]", shape), 16), "accepted") << shape;
  }
  EXPECT_NE(refusal(std::string(5000, '['), 0), "accepted");
  EXPECT_NE(refusal("[]", 0), "accepted");
  const std::string one = R"(:{"dtype":"F32","shape":[4],"data_offsets":[0,16]})";
  EXPECT_NE(refusal("{\"a\"" + one + ",\"b\"" + one + "}", 16), "accepted");
  const std::string two = R"(:{"dtype":"F32","shape":[4],"data_offsets":[16,32]})";
  EXPECT_NE(refusal("{\"a\"" + one + ",\"a\"" + two + "}", 32), "accepted");  // one name twice: a hole
  const SafetensorsEntry huge{"a", "F32", {int64_t{1} << 62, int64_t{1} << 62}, 0, 0};
  EXPECT_THROW(check_safetensors_bytes(huge, 4, "x"), RuntimeFailure);
}

}  // namespace safetensors_header_test
}  // namespace faultline
