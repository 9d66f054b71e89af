// The event log against everything that can happen to its bytes.
#include "record/jsonl.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "base/child_process.h"
#include "base/error.h"
#include "base/files/temporary_folder.h"

namespace faultline::record {
namespace jsonl_test {

std::string small_log() {
  return event_line(0, {{"step", 1}, {"loss", 0.5}}) + event_line(1, Json::object()) +
         event_line(2, {{"text", "a\nb"}, {"list", {1, 2}}});
}

std::vector<Json> events_of(std::string_view bytes, EventExtent* extent = nullptr) {
  std::vector<Json> events;
  EventScanner scanner("log");
  scanner.feed(bytes, [&](Json&& event) { events.push_back(std::move(event)); });
  const EventExtent found = scanner.finish();
  if (extent != nullptr) *extent = found;
  return events;
}

std::string refusal_of(std::string_view bytes) {
  try {
    events_of(bytes);
  } catch (const RuntimeFailure& failure) {
    return failure.what();
  }
  return "accepted";
}

void put(const std::filesystem::path& path, std::string_view bytes) { std::ofstream(path, std::ios::binary) << bytes; }

TEST(EventLog, ReadsBackWhatWasAppended) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "events.jsonl";
  {
    EventWriter writer(path);
    writer.append({{"kind", "step"}, {"loss", 0.25}});
    writer.append(Json::object());
    writer.flush_step();
    writer.append({{"kind", "end"}});
  }
  const std::vector<Json> expected = {{{"v", 1}, {"n", 0}, {"kind", "step"}, {"loss", 0.25}},
                                      {{"v", 1}, {"n", 1}},
                                      {{"v", 1}, {"n", 2}, {"kind", "end"}}};
  EXPECT_EQ(read_events(path), expected);
}

TEST(EventLog, HasAStableForm) {
  EXPECT_EQ(event_line(17, {{"step", 4}}), "{\"v\":1,\"n\":17,\"step\":4,\"crc\":\"cb6f734e\"}\n");
}

TEST(EventLog, ContinuesTheNumbersOfAnExistingFile) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "events.jsonl";
  for (int k = 0; k < 3; ++k) {
    EventWriter writer(path);
    EXPECT_EQ(writer.lines(), static_cast<uint64_t>(k));
    writer.append({{"k", k}});
    writer.flush_step();
  }
  EXPECT_EQ(read_events(path).size(), 3u);
}

TEST(EventLog, AcceptsAnEmptyFile) {
  EventExtent extent;
  EXPECT_TRUE(events_of("", &extent).empty());
  EXPECT_EQ(extent.torn_bytes, 0u);
}

TEST(EventLog, RecoversFromTruncationAtEveryByte) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "events.jsonl";
  const std::string log = small_log();
  const std::vector<Json> all = events_of(log);
  for (size_t length = 0; length <= log.size(); ++length) {
    const auto whole = static_cast<size_t>(std::count(log.begin(), log.begin() + static_cast<long>(length), '\n'));
    std::filesystem::remove(path);
    put(path, log.substr(0, length));
    EXPECT_EQ(read_events(path), std::vector<Json>(all.begin(), all.begin() + static_cast<long>(whole)));
    {
      EventWriter writer(path);
      EXPECT_EQ(writer.lines(), whole);
      EXPECT_EQ(writer.recovered().bytes + writer.recovered().torn_bytes, length);
      writer.append({{"resumed", true}});
      writer.flush_step();
    }
    const std::vector<Json> resumed = read_events(path);
    ASSERT_EQ(resumed.size(), whole + 1) << "cut at " << length;
    EXPECT_EQ(resumed.back(), Json({{"v", 1}, {"n", whole}, {"resumed", true}}));
  }
}

TEST(EventLog, DetectsEveryChangeOfASingleByte) {
  const std::string log = small_log();
  for (size_t place = 0; place < log.size(); ++place) {
    const auto line = 1 + std::count(log.begin(), log.begin() + static_cast<long>(place), '\n');
    for (int value = 0; value < 256; ++value) {
      std::string damaged = log;
      if (damaged[place] == static_cast<char>(value)) continue;
      damaged[place] = static_cast<char>(value);
      const std::string refusal = refusal_of(damaged);
      ASSERT_EQ(refusal.find("log:" + std::to_string(line) + ": "), 0u) << place << " -> " << value << ": " << refusal;
    }
  }
}

TEST(EventLog, DetectsEveryByteRemovedOrInserted) {
  const std::string log = small_log();
  for (size_t place = 0; place < log.size(); ++place) {
    std::string shorter = log;
    shorter.erase(place, 1);
    const bool torn = place + 1 == log.size();  // without its newline the last line is merely torn
    ASSERT_EQ(refusal_of(shorter) == "accepted", torn) << place;
    for (const char extra : {'\n', '0', ' ', '\0', '\xFF'}) {
      std::string longer = log;
      longer.insert(place, 1, extra);
      ASSERT_NE(refusal_of(longer), "accepted") << place;
    }
  }
}

TEST(EventLog, DetectsLinesRemovedRepeatedOrReordered) {
  const std::string a = event_line(0, {{"a", 1}});
  const std::string b = event_line(1, {{"b", 1}});
  const std::string c = event_line(2, {{"c", 1}});
  EXPECT_EQ(events_of(a + b + c).size(), 3u);
  for (const std::string& log : {a + c, b + c, a + a + b, a + b + b + c, b + a + c, a + "\n" + b}) {
    EXPECT_NE(refusal_of(log), "accepted") << log;
  }
}

TEST(EventLog, RefusesALaterVersionWithItsNumber) {
  for (const std::string& line : {std::string("{\"v\":2,\"n\":0}\n"), std::string("{\"v\":2,\"new\"")}) {
    EXPECT_NE(refusal_of(line).find("event version 2, this program knows 1"), std::string::npos);
  }
  EXPECT_NE(refusal_of("{\"v\":99999999999999999999,\"n\":0}\n"), "accepted");
}

TEST(EventLog, RefusesALineThatIsSealedButNotJson) {
  const std::string body = "{\"v\":1,\"n\":0,oops";
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08x", crc32c(body));
  EXPECT_EQ(refusal_of(body + ",\"crc\":\"" + crc + "\"}\n").find("log:1: not valid JSON"), 0u);
}

TEST(EventLog, DropsATailOfZerosThatAPowerCutLeft) {
  const std::string log = small_log();
  for (const size_t kept : {log.size(), log.size() - 5, size_t{3}}) {
    EventExtent extent;
    events_of(log.substr(0, kept) + std::string(4096, '\0'), &extent);
    EXPECT_EQ(extent.bytes + extent.torn_bytes, kept + 4096);
  }
  EXPECT_NE(refusal_of(log + std::string(4096, '\0') + "\n"), "accepted") << "zeros that end a line are damage";
}

TEST(EventLog, RefusesLinesWithoutEndAndEventsOfThatSize) {
  EventScanner scanner("log");
  const std::string block(kMaxEventBytes / 4, 'x');
  const EventVisitor ignore = [](Json&&) {};
  for (int i = 0; i < 4; ++i) scanner.feed(block, ignore);
  EXPECT_THROW(scanner.feed("x", ignore), RuntimeFailure);
  EXPECT_THROW(event_line(0, {{"text", std::string(kMaxEventBytes, 'x')}}), RuntimeFailure);
}

TEST(EventLog, KeepsBinaryTextAndNonFiniteNumbersReadable) {
  const std::string text("\xC3\x28\0\x1F\xE2\x80\xA8", 7);
  const std::vector<Json> events = events_of(event_line(0, {{"text", text}, {"x", NAN}, {"y", -INFINITY}}));
  EXPECT_EQ(events[0]["text"], std::string("\xEF\xBF\xBD(\0\x1F\xE2\x80\xA8", 9));
  EXPECT_EQ(events[0]["x"], "NaN");
  EXPECT_EQ(events[0]["y"], "-Infinity");
}

TEST(EventLog, RefusesReservedKeysAsOurOwnMistake) {
  for (const char* key : {"v", "n", "crc"}) EXPECT_THROW(event_line(0, {{key, 1}}), InternalError);
  EXPECT_THROW(event_line(0, Json::array()), InternalError);
}

TEST(EventLog, RewindsToTheLinesACheckpointKnew) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "events.jsonl";
  EventWriter writer(path);
  for (int k = 0; k < 10; ++k) writer.append({{"k", k}});
  writer.rewind(7);
  writer.append({{"k", "again"}});
  writer.flush_step();
  const std::vector<Json> events = read_events(path);
  ASSERT_EQ(events.size(), 8u);
  EXPECT_EQ(events[6]["k"], 6);
  EXPECT_EQ(events[7]["k"], "again");
  EXPECT_THROW(writer.rewind(9), RuntimeFailure);
  writer.rewind(0);
  EXPECT_TRUE(read_events(path).empty());
}

TEST(EventLog, HoldsAllThatWasReportedWhenKilledAtRandomMoments) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "events.jsonl";
  std::mt19937 random(7);
  uint64_t reported = 0;
  for (int round = 0; round < 50; ++round) {
    ChildProcess child([&](const ChildProcess::Report& report) {
      EventWriter writer(path);
      for (;;) {
        const uint64_t lines = writer.lines();
        writer.append({{"k", lines}, {"pad", std::string(lines * 131 % 3000, 'x')}});
        if (lines % 3 != 0) continue;  // steps of several lines
        writer.flush_step();
        report(writer.lines());
      }
    });
    for (const uint64_t lines : child.kill_after(random() % 4, random() % 10000)) reported = lines;
    if (reported == 0) continue;
    const std::vector<Json> events = read_events(path);
    ASSERT_GE(events.size(), reported);
    for (size_t k = 0; k < events.size(); ++k) ASSERT_EQ(events[k]["k"], k);
  }
  EXPECT_GT(reported, 0u);
}

}  // namespace jsonl_test
}  // namespace faultline::record
