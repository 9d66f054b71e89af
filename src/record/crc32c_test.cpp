// The vectors of RFC 3720, appendix B.4.
#include <gtest/gtest.h>

#include <string>

#include "record/jsonl.h"

namespace faultline::record {
namespace crc32c_test {

TEST(Crc32c, AgreesWithThePublishedVectors) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
}

}  // namespace crc32c_test
}  // namespace faultline::record
