// Old or new, never in between: looked at while it changes, and after the writer was killed.
#include "base/files/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "base/child_process.h"
#include "base/error.h"
#include "base/files/temporary_folder.h"

namespace faultline {
namespace atomic_file_test {

constexpr size_t kMaxBytes = 1 << 24;

size_t entries_in(const std::filesystem::path& directory) {
  const std::filesystem::directory_iterator entries(directory);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// Content that proves its own wholeness: one character, repeated.
std::string content(uint64_t k) { return std::string(1 + (k * 7919) % 50000, static_cast<char>('a' + k % 26)); }

bool is_whole(const std::string& text) { return !text.empty() && text.find_first_not_of(text[0]) == std::string::npos; }

TEST(AtomicFile, WritesAndReplacesAndLeavesNothingElse) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "a.json";
  write_file_atomically(path, "one");
  EXPECT_EQ(read_file(path, kMaxBytes), "one");
  write_file_atomically(path, std::string("t\0wo", 4));
  EXPECT_EQ(read_file(path, kMaxBytes), std::string("t\0wo", 4));
  write_file_atomically(path, "");
  EXPECT_EQ(read_file(path, kMaxBytes), "");
  EXPECT_EQ(entries_in(directory.path()), 1u);
}

TEST(AtomicFile, WritesInTheCurrentDirectoryWhenThePathHasNone) {
  const TemporaryFolder directory;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  write_file_atomically("plain", "x");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_file(directory.path() / "plain", kMaxBytes), "x");
}

TEST(AtomicFile, NamesThePathAndTheReasonWhenItFails) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "missing" / "a.json";
  try {
    write_file_atomically(path, "x");
    FAIL();
  } catch (const RuntimeFailure& failure) {
    EXPECT_NE(std::string(failure.what()).find(path.string()), std::string::npos);
    EXPECT_NE(std::string(failure.what()).find("No such file"), std::string::npos);
  }
  std::filesystem::create_directories(directory.path() / "taken" / "inner");
  EXPECT_THROW(write_file_atomically(directory.path() / "taken", "x"), RuntimeFailure);
  EXPECT_EQ(entries_in(directory.path()), 1u) << "the temporary of the failed rename must be gone";
}

TEST(AtomicFile, ShowsAReaderOnlyWholeContents) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "a";
  write_file_atomically(path, content(0));
  std::jthread writer([&](const std::stop_token& stop) {
    for (uint64_t k = 1; !stop.stop_requested(); ++k) write_file_atomically(path, content(k));
  });
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(is_whole(read_file(path, kMaxBytes)));
}

TEST(AtomicFile, SurvivesAKillAtAnyMoment) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "a";
  std::mt19937 random(1);
  uint64_t reported = 0;
  write_file_atomically(path, content(0));
  for (int round = 0; round < 50; ++round) {
    ChildProcess child([&](const ChildProcess::Report& report) {
      for (uint64_t k = reported + 1;; ++k) {
        write_file_atomically(path, content(k));
        report(k);
      }
    });
    for (const uint64_t k : child.kill_after(random() % 4, random() % 8000)) reported = k;
    const std::string found = read_file(path, kMaxBytes);
    EXPECT_TRUE(found == content(reported) || found == content(reported + 1)) << "after " << reported;
    if (found == content(reported + 1)) ++reported;
  }
  EXPECT_GT(reported, 0u);
  remove_stale_temporaries(directory.path());
  EXPECT_EQ(entries_in(directory.path()), 1u);
}

TEST(AtomicFile, RemovesOnlyItsOwnStaleTemporaries) {
  const TemporaryFolder directory;
  for (const char* name : {".a.json.faultline-tmp.1.0", "a.faultline-tmp.", ".hidden", "a.json"}) {
    std::ofstream(directory.path() / name) << "x";
  }
  remove_stale_temporaries(directory.path());
  EXPECT_EQ(entries_in(directory.path()), 3u);
  EXPECT_FALSE(std::filesystem::exists(directory.path() / ".a.json.faultline-tmp.1.0"));
}

}  // namespace atomic_file_test
}  // namespace faultline
