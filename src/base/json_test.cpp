// What is written must come back, and what cannot be JSON must have a defined form.
#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace faultline {
namespace json_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(JsonText, SortsKeysSoThatEqualValuesAreEqualBytes) {
  EXPECT_EQ(to_json_text(parse_json_text(R"({"b":1,"a":{"d":2,"c":3}})", "here")), R"({"a":{"c":3,"d":2},"b":1})");
}

TEST(JsonText, WritesNonFiniteNumbersAsStringsThatReadBack) {
  const std::string text = to_json_text({{"loss", {kNan, kInfinity, -kInfinity, 1.5}}});
  EXPECT_EQ(text, R"({"loss":["NaN","Infinity","-Infinity",1.5]})");
  const Json loss = parse_json_text(text, "here")["loss"];
  EXPECT_TRUE(std::isnan(number_from_json(loss[0], "here")));
  EXPECT_EQ(number_from_json(loss[1], "here"), kInfinity);
  EXPECT_EQ(number_from_json(loss[2], "here"), -kInfinity);
  EXPECT_EQ(number_from_json(loss[3], "here"), 1.5);
  EXPECT_THROW(number_from_json(Json("nan"), "here"), RuntimeFailure);
}

TEST(JsonText, KeepsDoublesToTheLastBit) {
  for (const double value : {0.1, 1.0 / 3, -0.0, 5e-324, 1.7976931348623157e308, 1e22, 123456789.0}) {
    const double back = number_from_json(parse_json_text(to_json_text(value), "here"), "here");
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
}

TEST(JsonText, ReplacesBrokenUtf8AndKeepsNul) {
  EXPECT_EQ(to_json_text(Json("a\xFF"
                              "b")),
            "\"a\xEF\xBF\xBD"
            "b\"");
  EXPECT_EQ(to_json_text(Json(std::string("a\0b", 3))), "\"a\\u0000b\"");
}

TEST(JsonText, RefusesWhatIsNotJsonWithTheOrigin) {
  for (const char* text : {"", "{", "[1,]", "nul", "{\"a\":1} x", "\"\xFF\"", "1e999"}) {
    try {
      parse_json_text(text, "somewhere:3");
      FAIL() << text;
    } catch (const RuntimeFailure& failure) {
      EXPECT_EQ(std::string(failure.what()).find("somewhere:3: "), 0u) << failure.what();
    }
  }
}

TEST(JsonText, LimitsDepthAlikeForReadingAndWriting) {
  const auto nested = [](int levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  const Json deepest = parse_json_text(nested(kMaxJsonDepth), "here");
  EXPECT_EQ(to_json_text(deepest), nested(kMaxJsonDepth));
  EXPECT_THROW(parse_json_text(nested(kMaxJsonDepth + 1), "here"), RuntimeFailure);
  EXPECT_THROW(to_json_text(Json::array({deepest})), RuntimeFailure);
  EXPECT_THROW(parse_json_text(std::string(1000000, '['), "here"), RuntimeFailure);
}

}  // namespace json_test
}  // namespace faultline
