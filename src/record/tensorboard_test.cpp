// The bytes of the file, and the file that tests/tensorboard_test.py reads with TensorBoard itself.
#include "record/tensorboard.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/files/temporary_folder.h"
#include "record/jsonl.h"

namespace faultline::record {
namespace tensorboard_test {

// Ticks a quarter of a second per look, exactly representable.
Clock ticking() {
  return [now = 1767225599.0]() mutable { return now += 0.25; };
}

template <typename T>
T number_at(const std::string& bytes, size_t place) {
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

// The payloads of all records, each checksum verified by the definition in record_writer.h.
std::vector<std::string> records_of(const std::string& bytes) {
  const auto masked = [](std::string_view part) {
    const uint32_t crc = crc32c(part);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
  };
  std::vector<std::string> records;
  for (size_t place = 0; place < bytes.size();) {
    const auto length = number_at<uint64_t>(bytes, place);
    EXPECT_EQ(number_at<uint32_t>(bytes, place + 8), masked(bytes.substr(place, 8)));
    records.push_back(bytes.substr(place + 12, length));
    EXPECT_EQ(number_at<uint32_t>(bytes, place + 12 + length), masked(records.back()));
    place += length + 16;
  }
  return records;
}

TEST(Tensorboard, WritesTheFileVersionFirstThenScalars) {
  const TemporaryFolder directory;
  TensorboardWriter writer(directory.path(), [] { return 2.0; });
  writer.scalar("loss", 1.0f, 300);
  writer.flush();
  const std::vector<std::string> records = records_of(read_file(writer.path(), 1 << 20));
  ASSERT_EQ(records.size(), 2u);
  const std::string two("\x09\0\0\0\0\0\0\0\x40", 9);  // wall_time = 2.0
  EXPECT_EQ(records[0], two + "\x1a\x0d" + "brain.Event:2");
  EXPECT_EQ(records[1], two + std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\x80\x3f", 18));
}

TEST(Tensorboard, GivesEveryWriterAFileThatSortsAfterTheLast) {
  const TemporaryFolder directory;
  const Clock still = [] { return 1767225599.9; };
  const TensorboardWriter first(directory.path(), still);
  const TensorboardWriter second(directory.path(), still);
  EXPECT_LT(first.path().filename().string(), second.path().filename().string());
  EXPECT_EQ(first.path().filename().string().find("events.out.tfevents.1767225599.0000."), 0u);
}

TEST(Tensorboard, WritesAFileForTensorBoardToRead) {
  const char* wanted = std::getenv("FAULTLINE_TB_DIR");
  const TemporaryFolder own;
  const std::filesystem::path directory = wanted == nullptr ? own.path() : std::filesystem::path(wanted);
  {
    TensorboardWriter writer(directory, ticking());
    writer.scalar("val-core/openai/gsm8k/acc/mean@1", 0.1f, 0);
    for (int64_t step = 1; step <= 200; ++step) writer.scalar("actor/pg_loss", 1.0f / static_cast<float>(step), step);
    writer.flush();
    for (const float value : {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), -0.0f,
                              std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      writer.scalar("faultline/extremes", value, int64_t{1} << 40);
    }
  }
  TensorboardWriter resumed(directory, ticking(), 101);
  for (int64_t step = 101; step <= 150; ++step) resumed.scalar("actor/pg_loss", -1.0f, step);
  resumed.flush();
  EXPECT_EQ(records_of(read_file(resumed.path(), 1 << 20)).size(), 52u);
}

}  // namespace tensorboard_test
}  // namespace faultline::record
