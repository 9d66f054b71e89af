#include "base/files/archive.h"

#include <gtest/gtest.h>

namespace faultline {
namespace archive_test {

TEST(Archive, IsTheSameBytesForTheSameFiles) {
  const std::map<std::string, std::string> files = {{"b/x", "1"}, {"a", std::string(1000, 'z')}, {"c", ""}};
  const std::string tar = tar_archive(files);
  EXPECT_EQ(tar.size() % 512, 0u);
  EXPECT_EQ(tar, tar_archive(files));
  EXPECT_EQ(tar.substr(257, 5), "ustar");
  EXPECT_EQ(gzip_compressed(tar), gzip_compressed(tar));
  EXPECT_LT(gzip_compressed(tar).size(), tar.size() / 10);
}

TEST(Archive, TakesNamesForWhichThereIsRoom) {
  const std::string part(90, 'a');
  EXPECT_TRUE(fits_tar_name("a"));
  EXPECT_TRUE(fits_tar_name(part + "/" + part));
  EXPECT_FALSE(fits_tar_name(part + part));
  EXPECT_FALSE(fits_tar_name(""));
  EXPECT_FALSE(fits_tar_name("/a"));
}

}  // namespace archive_test
}  // namespace faultline
