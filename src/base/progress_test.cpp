// Progress: what a terminal and a log file get to see, with a clock and a stream of our own.
#include "base/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

namespace faultline {
namespace progress_test {

struct Stage {
  std::ostringstream out;
  double now = 100;  // seconds
  int width = 80;

  ProgressOptions options(bool terminal) {
    ProgressOptions options;
    options.out = &out;
    options.clock = [this] { return now; };
    options.terminal = terminal;
    options.width = [this] { return width; };
    options.unicode = false;
    return options;
  }

  // What a terminal shows at the end: the text after the last carriage return.
  std::string last_drawn() const {
    const std::string all = out.str();
    return all.substr(all.rfind("\r\x1b[K") + 4);
  }

  int64_t redraws() const { return std::ranges::count(out.str(), '\r'); }
  int64_t lines() const { return std::ranges::count(out.str(), '\n'); }
};

TEST(ProgressOnATerminal, DrawsOneFullLine) {
  Stage stage;
  Progress progress("train", 116, stage.options(true));
  progress.set_postfix("reward 0.61");
  stage.now += 34.667;
  progress.advance(52);
  EXPECT_EQ(stage.last_drawn().find("train:  44%|###"), 0u) << stage.last_drawn();
  EXPECT_NE(stage.last_drawn().find("| 52/116 [00:34<00:43, 1.50 step/s, reward 0.61]"), std::string::npos)
      << stage.last_drawn();
  EXPECT_EQ(stage.last_drawn().size(), 79u);
  EXPECT_EQ(stage.lines(), 0);
}

TEST(ProgressOnATerminal, RedrawsAtMostTenTimesASecond) {
  Stage stage;
  Progress progress("train", 100'000, stage.options(true));
  for (int i = 0; i < 10'000; ++i) {
    stage.now += 0.001;
    progress.advance();
  }
  EXPECT_LE(stage.redraws(), 101);
  EXPECT_GE(stage.redraws(), 95);
}

TEST(ProgressOnATerminal, ShowsAHundredPerCentOnlyWhenAllIsDone) {
  Stage stage;
  Progress progress("", 1000, stage.options(true));
  stage.now += 1;
  progress.advance(999);
  EXPECT_EQ(stage.last_drawn().find(" 99%"), 0u) << stage.last_drawn();
  stage.now += 1;
  progress.advance(1);
  EXPECT_EQ(stage.last_drawn().find("100%"), 0u) << stage.last_drawn();
}

TEST(ProgressOnATerminal, RoundsPerCentInIntegers) {
  Stage stage;
  Progress progress("", 100, stage.options(true));
  stage.now += 1;
  progress.advance(29);  // 0.29 * 100 is 28.999999999999996
  EXPECT_EQ(stage.last_drawn().find(" 29%"), 0u) << stage.last_drawn();
}

TEST(ProgressOnATerminal, NeverDrawsBeyondTheLastColumn) {
  for (const int width : {1, 10, 20, 40, 60, 200}) {
    Stage stage;
    stage.width = width;
    auto options = stage.options(true);
    options.unicode = true;
    Progress progress("größer", 7, options);
    stage.now += 3;
    progress.advance(3);
    int64_t characters = 0;
    for (const char byte : stage.last_drawn()) characters += (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
    EXPECT_LT(characters, width);
    EXPECT_EQ(stage.last_drawn().find("█") != std::string::npos, width >= 60) << stage.last_drawn();
  }
}

TEST(ProgressOnATerminal, FillsTheBarInProportion) {
  Stage stage;
  Progress progress("x", 4, stage.options(true));
  stage.now += 1;
  progress.advance(1);
  const std::string drawn = stage.last_drawn();
  const auto bar = drawn.substr(drawn.find('|') + 1, drawn.rfind('|') - drawn.find('|') - 1);
  EXPECT_EQ(std::ranges::count(bar, '#'), static_cast<int64_t>(bar.size() / 4)) << drawn;
  EXPECT_GT(bar.size(), 20u);
}

TEST(ProgressOnATerminal, EndsTheLineWhenAnExceptionPasses) {
  Stage stage;
  try {
    Progress progress("train", 10, stage.options(true));
    progress.advance(3);
    throw std::runtime_error("disk full");
  } catch (const std::runtime_error&) {
  }
  EXPECT_NE(stage.last_drawn().find("3/10"), std::string::npos) << stage.last_drawn();
  EXPECT_TRUE(stage.last_drawn().ends_with(" stopped by an error\n")) << stage.last_drawn();
}

TEST(ProgressOnATerminal, EndsTheLineOnce) {
  Stage stage;
  {
    Progress progress("train", 2, stage.options(true));
    progress.advance(2);
    progress.finish();
    progress.finish();
    stage.now += 60;
    progress.advance();
  }
  EXPECT_EQ(stage.lines(), 1);
  EXPECT_EQ(stage.out.str().back(), '\n');
}

TEST(ProgressOnATerminal, LetsNoControlCharacterThrough) {
  Stage stage;
  Progress progress("a\x1b[2Jb\n", 0, stage.options(true));
  progress.set_postfix("c\rd\x7f");
  stage.now += 1;
  progress.advance();
  EXPECT_EQ(stage.last_drawn(), "a [2Jb : 1 step [00:01, 1.00 step/s, c d ]");
}

TEST(ProgressInALog, WritesALineAtEachTenth) {
  Stage stage;
  {
    Progress progress("eval", 1000, stage.options(false));
    for (int i = 0; i < 1000; ++i) progress.advance();
    EXPECT_EQ(stage.lines(), 9);
  }
  EXPECT_EQ(stage.lines(), 10);
  EXPECT_EQ(stage.out.str().find('\r'), std::string::npos);
  EXPECT_EQ(stage.out.str().find("eval:  10% 100/1000 ["), 0u) << stage.out.str();
  EXPECT_NE(stage.out.str().find("\neval: 100% 1000/1000 ["), std::string::npos) << stage.out.str();
}

TEST(ProgressInALog, WritesALineEveryTenSeconds) {
  Stage stage;
  Progress progress("slow", 1'000'000, stage.options(false));
  for (int i = 0; i < 61; ++i) {
    stage.now += 1;
    progress.advance();
  }
  EXPECT_EQ(stage.lines(), 6);
}

TEST(Progress, IsSilentWhenQuiet) {
  for (const bool terminal : {false, true}) {
    Stage stage;
    {
      auto options = stage.options(terminal);
      options.quiet = true;
      Progress progress("train", 10, options);
      stage.now += 100;
      progress.advance(10);
    }
    EXPECT_EQ(stage.out.str(), "");
  }
}

TEST(Progress, OfAnUnknownTotalShowsCountAndRateOnly) {
  Stage stage;
  {
    Progress progress("tokens", 0, stage.options(false));
    stage.now += 10;
    progress.advance(123'456);
  }
  const std::string line = "tokens: 123k step [00:10, 12346 step/s]\n";
  EXPECT_EQ(stage.out.str(), line + line);
}

TEST(Progress, ShowsSecondsPerStepWhenSlow) {
  Stage stage;
  Progress progress("", 10, stage.options(true));
  stage.now += 8;
  progress.advance(2);
  EXPECT_NE(stage.last_drawn().find("2/10 [00:08<00:32, 4.00 s/step]"), std::string::npos) << stage.last_drawn();
}

TEST(Progress, DoesNotCountAnEarlierRunIntoTheRate) {
  Stage stage;
  auto options = stage.options(true);
  options.already_done = 90;
  Progress progress("resumed", 100, options);
  EXPECT_NE(stage.last_drawn().find("90/100 [00:00<?, ? step/s]"), std::string::npos) << stage.last_drawn();
  stage.now += 4;
  progress.advance(4);
  EXPECT_NE(stage.last_drawn().find("94/100 [00:04<00:06, 1.00 step/s]"), std::string::npos) << stage.last_drawn();
}

// The first batch of answers took a minute, each of the others six seconds: 28 minutes were announced, two were needed.
TEST(Progress, TellsTheTimeLeftFromMoreThanTheFirstBatch) {
  Stage stage;
  auto options = stage.options(true);
  options.batch = 10;
  Progress progress("", 100, options);
  stage.now += 60;
  progress.advance(1);
  EXPECT_NE(stage.last_drawn().find("1/100 [01:00<?,"), std::string::npos) << stage.last_drawn();
  stage.now += 1;
  progress.advance(9);
  EXPECT_NE(stage.last_drawn().find("10/100 [01:01<?,"), std::string::npos) << stage.last_drawn();
  stage.now += 3;
  progress.advance(6);  // too few to forget the first ones: 64 s for 16
  EXPECT_NE(stage.last_drawn().find("16/100 [01:04<05:36,"), std::string::npos) << stage.last_drawn();
  stage.now += 3;
  progress.advance(4);
  EXPECT_NE(stage.last_drawn().find("20/100 [01:07<00:48,"), std::string::npos) << stage.last_drawn();
}

TEST(Progress, SurvivesMoreStepsThanAnnounced) {
  Stage stage;
  Progress progress("", 10, stage.options(true));
  stage.now += 1;
  progress.advance(15);
  EXPECT_EQ(stage.last_drawn().find("100%|"), 0u) << stage.last_drawn();
  EXPECT_NE(stage.last_drawn().find("15/10 [00:01<00:00"), std::string::npos) << stage.last_drawn();
}

// Lost counts are rare on a busy machine, so the clock, which is read while counting, also looks for a second visitor.
TEST(Progress, LetsOneThreadAtATimeCountAndLosesNone) {
  Stage stage;
  std::atomic<bool> visited = false, overlapped = false;
  {
    auto options = stage.options(false);
    options.clock = [&] {
      if (visited.exchange(true)) overlapped = true;
      std::this_thread::yield();
      visited = false;
      return stage.now;
    };
    Progress progress("", 8000, options);
    std::latch all_running(8);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        all_running.arrive_and_wait();
        for (int i = 0; i < 1000; ++i) progress.advance();
      });
    }
  }
  EXPECT_FALSE(overlapped);
  EXPECT_NE(stage.out.str().find("100% 8000/8000"), std::string::npos) << stage.out.str();
  EXPECT_EQ(stage.lines(), 10);
}

}  // namespace progress_test
}  // namespace faultline
