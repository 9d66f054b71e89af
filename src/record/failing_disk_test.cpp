// Records on a disk that refuses: full, broken, slow to take bytes, interrupted, or cut off in the middle of a write by
// a kill. The system calls are replaced in this executable (the definitions below win over libc's), so the code under
// test is the real one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <random>

#include "base/child_process.h"
#include "base/error.h"
#include "base/files/file.h"
#include "base/files/temporary_folder.h"
#include "record/campaign_store.h"
#include "record/run_directory.h"
#include "record/tensorboard.h"

namespace {

struct Disk {
  int64_t bytes_left = -1;  // -1: no end
  int write_error = ENOSPC;
  bool kills = false;       // at the end of the bytes, instead of an error
  size_t largest = 0;       // most bytes a write takes; 0: no limit
  bool interrupts = false;  // every second call fails with EINTR
  int sync_error = 0;
  int truncate_error = 0;
  unsigned calls = 0;
};
Disk disk;

// How many bytes the disk takes, or -1 with errno.
ssize_t admit(size_t bytes) {
  if (disk.interrupts && ++disk.calls % 2 == 1) return errno = EINTR, -1;
  if (disk.largest > 0) bytes = std::min(bytes, disk.largest);
  if (disk.bytes_left >= 0) {
    if (disk.bytes_left == 0 && disk.kills) ::raise(SIGKILL);
    if (disk.bytes_left == 0) return errno = disk.write_error, -1;
    bytes = std::min(bytes, static_cast<size_t>(disk.bytes_left));
    disk.bytes_left -= static_cast<int64_t>(bytes);
  }
  return static_cast<ssize_t>(bytes);
}

bool is_file(int descriptor) { return ::lseek(descriptor, 0, SEEK_CUR) >= 0; }  // not the pipe to the parent

int sync_or_fail(int descriptor, long call) {
  if (disk.interrupts && ++disk.calls % 2 == 1) return errno = EINTR, -1;
  if (disk.sync_error != 0) return errno = disk.sync_error, -1;
  return static_cast<int>(::syscall(call, descriptor));
}

struct HealthyAfterwards {
  ~HealthyAfterwards() { disk = Disk(); }
};

}  // namespace

extern "C" {
ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (!is_file(descriptor)) return ::syscall(SYS_write, descriptor, data, bytes);
  const ssize_t taken = bytes == 0 ? 0 : admit(bytes);
  return taken < 0 ? -1 : ::syscall(SYS_write, descriptor, data, taken);
}
ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset) {
  const ssize_t taken = bytes == 0 ? 0 : admit(bytes);
  return taken < 0 ? -1 : ::syscall(SYS_pwrite64, descriptor, data, taken, offset);
}
int fsync(int descriptor) { return sync_or_fail(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return sync_or_fail(descriptor, SYS_fdatasync); }
int ftruncate(int descriptor, off_t size) noexcept {
  if (disk.truncate_error != 0) return errno = disk.truncate_error, -1;
  return static_cast<int>(::syscall(SYS_ftruncate, descriptor, size));
}
}

namespace faultline::record {
namespace {

constexpr size_t kMaxBytes = 1 << 24;

template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const RuntimeFailure& failure) {
    return failure.what();
  }
  return "accepted";
}

Manifest some_manifest() {
  Manifest manifest;
  manifest.recipe_name = "e5";
  manifest.recipe = {{"seed", 7}};
  return manifest;
}

Trial some_trial(int64_t index) {
  return {.key = {"cell", index}, .outcome = {{"k", index}}, .evidence = {{"pad", std::string(20000, 'x')}}};
}

TEST(FailingDisk, LeavesTheOldFileWhereverTheNewOneStops) {
  const HealthyAfterwards guard;
  const TemporaryFolder directory;
  const auto path = directory.path() / "a";
  write_file_atomically(path, "old content");
  for (int64_t bytes = 0; bytes < 8; ++bytes) {
    disk.bytes_left = bytes;
    const std::string refusal = refusal_of([&] { write_file_atomically(path, "new text"); });
    EXPECT_NE(refusal.find(path.string() + ": cannot write"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("No space left on device"), std::string::npos) << refusal;
    EXPECT_EQ(read_file(path, kMaxBytes), "old content");
  }
  disk = Disk{.sync_error = EIO};
  EXPECT_NE(refusal_of([&] { write_file_atomically(path, "new text"); }).find("Input/output error"), std::string::npos);
  EXPECT_EQ(read_file(path, kMaxBytes), "old content");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1) << "no temporary stays";
}

TEST(FailingDisk, IsNotFooledByShortAndInterruptedWrites) {
  const HealthyAfterwards guard;
  const TemporaryFolder directory;
  disk = Disk{.largest = 3, .interrupts = true};
  write_file_atomically(directory.path() / "a", "a longer content");
  EXPECT_EQ(read_file(directory.path() / "a", kMaxBytes), "a longer content");
  EventWriter writer(directory.path() / "events.jsonl");
  writer.append({{"k", 1}});
  writer.flush_step();
  EXPECT_EQ(read_events(directory.path() / "events.jsonl").size(), 1u);
}

TEST(FailingDisk, NeverGluesAnEventToHalfOfAnother) {
  const HealthyAfterwards guard;
  const Json event = {{"k", 1}};
  const auto length = static_cast<int64_t>(event_line(1, event).size());
  for (const bool truncate_fails : {false, true}) {
    for (int64_t bytes = 0; bytes < length; ++bytes) {
      const TemporaryFolder directory;
      const auto path = directory.path() / "events.jsonl";
      EventWriter writer(path);
      writer.append({{"k", 0}});
      writer.flush_step();
      const auto before = std::filesystem::file_size(path);
      writer.append(event);
      disk = Disk{.bytes_left = bytes, .truncate_error = truncate_fails ? EIO : 0};
      EXPECT_NE(refusal_of([&] { writer.flush_step(); }).find("No space left"), std::string::npos);
      EXPECT_EQ(std::filesystem::file_size(path), before + (truncate_fails ? bytes : 0));
      EXPECT_EQ(read_events(path).size(), 1u) << "readers see whole steps only";
      EXPECT_NE(refusal_of([&] { writer.flush_step(); }), "accepted") << "still full";
      disk = Disk();
      writer.append({{"k", 2}});
      writer.flush_step();
      const std::vector<Json> events = read_events(path);
      ASSERT_EQ(events.size(), 3u);
      for (size_t k = 0; k < 3; ++k) EXPECT_EQ(events[k]["k"], k);
    }
  }
}

TEST(FailingDisk, DoesNotReportAnEventWhoseSyncFailed) {
  const HealthyAfterwards guard;
  const TemporaryFolder directory;
  const auto path = directory.path() / "events.jsonl";
  EventWriter writer(path);
  writer.append({{"k", 0}});
  disk.sync_error = EIO;
  EXPECT_NE(refusal_of([&] { writer.flush_step(); }).find("cannot sync to disk: Input/output error"),
            std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(path), 0u);
  disk = Disk();
  writer.flush_step();
  EXPECT_EQ(read_events(path).size(), 1u);
}

TEST(FailingDisk, RefusesToStartARunAndLeavesNothingVisible) {
  const HealthyAfterwards guard;
  const TemporaryFolder directory;
  for (const int64_t bytes : {0, 10, 100, 300}) {
    disk.bytes_left = bytes;
    EXPECT_NE(refusal_of([&] { RunDirectory::create(directory.path(), some_manifest()); }), "accepted");
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  }
}

TEST(FailingDisk, KeepsTheOldSummaryWhenTheNewOneDoesNotFit) {
  const HealthyAfterwards guard;
  const TemporaryFolder directory;
  const RunDirectory run = RunDirectory::create(directory.path(), some_manifest());
  run.write_summary({.step_reached = 1, .steps_planned = 9});
  disk.bytes_left = 50;
  EXPECT_NE(refusal_of([&] { run.write_summary({.step_reached = 2, .steps_planned = 9}); }), "accepted");
  EXPECT_EQ(read_run(run.path()).summary->step_reached, 1);
}

TEST(FailingDisk, KeepsTensorboardRecordsWhole) {
  const HealthyAfterwards guard;
  const TemporaryFolder directory;
  TensorboardWriter writer(directory.path());
  const auto before = std::filesystem::file_size(writer.path());
  writer.scalar("loss", 1.0f, 1);
  disk.bytes_left = 20;
  EXPECT_NE(refusal_of([&] { writer.flush(); }), "accepted");
  EXPECT_EQ(std::filesystem::file_size(writer.path()), before);
  disk = Disk();
  writer.flush();
  EXPECT_GT(std::filesystem::file_size(writer.path()), before);
}

TEST(FailingDisk, CommitsATrialWholeOrNotAtAll) {
  const HealthyAfterwards guard;
  const TemporaryFolder directory;
  CampaignStore store(directory.path() / "campaign.sqlite");
  ASSERT_TRUE(store.insert(some_trial(0)));
  int refused = 0;
  for (int64_t bytes = 0; bytes < 40000; bytes += 3001) {
    disk.bytes_left = bytes;
    const std::string refusal = refusal_of([&] { EXPECT_TRUE(store.insert(some_trial(1))); });
    disk = Disk();
    const bool stored = refusal == "accepted";
    refused += stored ? 0 : 1;
    ASSERT_EQ(store.count("cell"), stored ? 2 : 1) << bytes << ": " << refusal;
    ASSERT_EQ(store.trials("cell").size(), stored ? 2u : 1u);
    if (stored) break;
    EXPECT_NE(refusal.find("campaign.sqlite: cannot "), std::string::npos) << refusal;
  }
  EXPECT_GT(refused, 3);
  const bool missing = store.count("cell") == 1;
  EXPECT_EQ(store.insert(some_trial(1)), missing);
}

TEST(FailingDisk, RecoversFromAKillInTheMiddleOfAWrite) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "events.jsonl";
  std::mt19937 random(3);
  uint64_t reported = 0;
  int torn = 0;
  for (int round = 0; round < 50; ++round) {
    ChildProcess child([&](const ChildProcess::Report& report) {
      EventWriter writer(path);
      disk = Disk{.bytes_left = static_cast<int64_t>(random() % 2000), .kills = true};
      for (;;) {
        writer.append({{"k", writer.lines()}});
        writer.flush_step();
        report(writer.lines());
      }
    });
    random.discard(1);  // the child drew one from its copy
    EXPECT_EQ(child.wait(), -1) << "killed, not ended";
    for (const uint64_t lines : child.reports()) reported = lines;
    const EventExtent extent = scan_events(path, [](Json&&) {});
    EXPECT_EQ(extent.lines, reported) << "a line that was torn is not one, a line that was reported is";
    torn += extent.torn_bytes > 0 ? 1 : 0;
  }
  EXPECT_GT(torn, 30) << "the kills must hit the middle of lines";
  const std::vector<Json> events = read_events(path);
  for (size_t k = 0; k < events.size(); ++k) ASSERT_EQ(events[k]["k"], k);
}

TEST(FailingDisk, ReportsTheRealFullDevice) {
  const FileDescriptor full = open_file("/dev/full", O_WRONLY);
  const std::string refusal = refusal_of([&] { write_all(full, "x", "/dev/full"); });
  EXPECT_EQ(refusal, "/dev/full: cannot write 1 bytes: No space left on device; free some space and resume");
}

}  // namespace
}  // namespace faultline::record
