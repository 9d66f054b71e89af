#include "report/html.h"

#include <gtest/gtest.h>

namespace faultline::report {
namespace html_test {

TEST(Html, EscapesWhatWouldBeMarkup) {
  EXPECT_EQ(text("<script>alert('x')</script>").bytes(), "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;");
  EXPECT_EQ(text("a & b \"c\"").bytes(), "a &amp; b &quot;c&quot;");
}

TEST(Html, KeepsTextOfOtherLanguages) { EXPECT_EQ(text("μ ≤ 数 🙂\n\t").bytes(), "μ ≤ 数 🙂\n\t"); }

TEST(Html, MarksBrokenUtf8) {
  EXPECT_EQ(text("a\xFFz").bytes(), "a\xEF\xBF\xBDz");
  EXPECT_EQ(text("\xC0\xBC").bytes(), "\xEF\xBF\xBD\xEF\xBF\xBD");                  // an overlong '<'
  EXPECT_EQ(text("\xE0\x80\xBC").bytes().find('<'), std::string::npos);             // another
  EXPECT_EQ(text("\xED\xA0\x80").bytes(), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  EXPECT_EQ(text("\xF0\x9F").bytes(), "\xEF\xBF\xBD\xEF\xBF\xBD");                  // cut short
  EXPECT_EQ(text("\xF5\x80\x80\x80").bytes().find('\xF5'), std::string::npos);
}

TEST(Html, MakesControlCharactersVisible) {
  EXPECT_EQ(text(std::string_view("a\0b", 3)).bytes(), "a&#9216;b");
  EXPECT_EQ(text("\x1B[31m\x7F").bytes(), "&#9243;[31m&#9249;");
  EXPECT_EQ(text("\xE2\x80\xAEtxt.exe").bytes(), "‹U+202E›txt.exe");  // would turn the rest of the line round
}

TEST(Html, CutsLongTextAndSaysHowMuchIsLeft) {
  const std::string shown = text(std::string(10'000'000, '<'), 100).bytes();
  EXPECT_LT(shown.size(), 600U);
  EXPECT_NE(shown.find("(9999900 bytes more)"), std::string::npos);
  EXPECT_EQ(text("äää", 3).bytes(), "ää… (2 bytes more)");  // never inside a character
}

TEST(Html, TableEscapesItsCellsAndHeadings) {
  const std::string made = table({"<b>"}, {{std::string("<i>")}}).bytes();
  EXPECT_EQ(made.find("<b>"), std::string::npos);
  EXPECT_EQ(made.find("<i>"), std::string::npos);
  EXPECT_NE(made.find("&lt;i&gt;"), std::string::npos);
}

}  // namespace html_test
}  // namespace faultline::report
