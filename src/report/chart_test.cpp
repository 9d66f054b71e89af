#include "report/chart.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "report/chart_parts.h"

namespace faultline::report {
namespace chart_test {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Scale, PutsValuesBetweenItsPixels) {
  const Scale scale(0, 10, 100, 200, false);
  EXPECT_DOUBLE_EQ(scale(5), 150);
  EXPECT_DOUBLE_EQ(scale(-3), 100);  // clamped: nothing is drawn outside
  const Scale log(0.01, 100, 0, 400, true);
  EXPECT_DOUBLE_EQ(log(1), 200);
  EXPECT_DOUBLE_EQ(log(0), 0);
}

TEST(Scale, HasRoundTicks) {
  EXPECT_EQ(Scale(0, 1, 0, 1, false).ticks(5), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(Scale(0.01, 100, 0, 1, true).ticks(8).size(), 5U);
  EXPECT_LT(Scale(3, 3, 0, 1, false).ticks(5).size(), 12U);  // no extent
}

TEST(Scale, HasTicksWithinADecade) {
  EXPECT_EQ(Scale(12, 250, 0, 1, true).ticks(5), (std::vector<double>{20, 50, 100, 200}));
}

TEST(Shortened, KeepsBothEnds) {
  EXPECT_EQ(shortened("short", 100), "short");
  const std::string cut = shortened("relative_gaussian strength=0.05", 100);
  EXPECT_TRUE(cut.starts_with("relati") && cut.ends_with("0.05")) << cut;
  EXPECT_EQ(shortened("ääääääääää", 40), "ää…äää");
}

TEST(IntervalChart, DrawsTheValueWhereItIs) {
  const std::string svg =
      draw(IntervalChart{.title = "t",
                         .rows = {{.label = "a", .value = 0.5, .range = std::pair(0.25, 0.75), .note = "50 %"}},
                         .axis = std::pair(0.0, 1.0)})
          .bytes();
  EXPECT_EQ(count(svg, "<svg"), 2U);                       // wide and narrow
  EXPECT_NE(svg.find("cx=\"486.0\""), std::string::npos);  // half of 280 … 692
  EXPECT_NE(svg.find("x1=\"383.0\" x2=\"589.0\""), std::string::npos);
}

TEST(IntervalChart, ARowWithoutAValueHasNoPoint) {
  const std::string svg =
      draw(IntervalChart{.title = "t", .rows = {{.label = "a", .note = "evidence missing"}}}).bytes();
  EXPECT_EQ(count(svg, "<circle"), 0U);
  EXPECT_NE(svg.find("evidence missing"), std::string::npos);
}

TEST(LineChart, InterruptsTheLineWhereAValueIsNotFinite) {
  const std::string svg = draw(LineChart{.title = "t", .series = {{"s", {{1, 1}, {2, NAN}, {3, 2}, {4, 3}}}}}).bytes();
  EXPECT_EQ(count(svg, "M"), 4U);  // two pieces in each of two drawings
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(LineChart, ThinsALongSeriesAndKeepsItsSpike) {
  Series series{"s", {}};
  for (int i = 0; i < 100'000; ++i) series.points.push_back({static_cast<double>(i), i == 77'777 ? 100.0 : 0.0});
  const std::string svg = draw(LineChart{.title = "t", .series = {series}}).bytes();
  EXPECT_LT(svg.size(), 40'000U);
  // The top of the picture, where only the spike is.
  const std::string top = fmt::format("{:.1f}", 8 + (280 - 38 - 8) * (0.08 / 1.16));
  EXPECT_NE(svg.find(" " + top), std::string::npos) << top;
}

TEST(GridChart, ShadesByValueAndLeavesGapsWhereThereIsNone) {
  const std::string svg =
      draw(GridChart{.title = "t", .rows = {"r"}, .columns = {"a", "b", "c"}, .values = {1.0, 0.5, std::nullopt}})
          .bytes();
  EXPECT_EQ(count(svg, "class=\"heat\" fill-opacity=\"1.000\""), 2U);
  EXPECT_EQ(count(svg, "class=\"heat\" fill-opacity=\"0.500\""), 2U);
  EXPECT_EQ(count(svg, "<rect") - count(svg, "class=\"heat\""), 2U);
  EXPECT_NE(svg.find("no evidence there"), std::string::npos);
}

TEST(Charts, EscapeHostileNames) {
  const std::string evil = "</svg><script>alert(1)</script>";
  const std::string all =
      draw(IntervalChart{.title = evil, .rows = {{.label = evil, .note = evil}}}).bytes() +
      draw(LineChart{.title = evil, .x_label = evil, .series = {{evil, {{1, 1}}}, {evil, {}}}}).bytes() +
      draw(GridChart{.title = evil, .rows = {evil}, .columns = {evil}, .values = {1.0}}).bytes();
  EXPECT_EQ(all.find("<script"), std::string::npos);
  EXPECT_EQ(count(all, "<svg"), count(all, "</svg>"));
}

TEST(Charts, AnswerNothingToNothing) {
  EXPECT_TRUE(draw(GridChart{.title = "t"}).empty());
  EXPECT_EQ(draw(LineChart{.title = "t", .series = {{"s", {{1, NAN}}}}}).bytes().find("nan"), std::string::npos);
  EXPECT_EQ(draw(IntervalChart{.title = "t", .rows = {{.label = "a", .value = INFINITY}}}).bytes().find("inf"),
            std::string::npos);
}

}  // namespace chart_test
}  // namespace faultline::report
