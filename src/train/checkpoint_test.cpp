// Checkpoints: a run that is broken off at any step and resumed is the uninterrupted one to the bit; torn, foreign and
// unwritable checkpoints are refused with a sentence. Real kills are in tests/train_kill_test.py.
#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/files/temporary_folder.h"
#include "train/tiny_model.h"

// A disk that takes only so many bytes: this definition wins over libc's, so the code under test is the real one.
static int64_t disk_bytes_left = -1;  // -1: no end
extern "C" ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (disk_bytes_left >= 0 && ::lseek(descriptor, 0, SEEK_CUR) >= 0) {
    if (disk_bytes_left == 0) return errno = ENOSPC, -1;
    bytes = std::min(bytes, static_cast<size_t>(disk_bytes_left));
    disk_bytes_left -= static_cast<int64_t>(bytes);
  }
  return ::syscall(SYS_write, descriptor, data, bytes);
}

namespace faultline::train {
namespace checkpoint_test {

namespace fs = std::filesystem;

TrainSpec short_spec() {
  TrainSpec spec;
  spec.stages = {tiny_sft(5), tiny_grpo(6)};
  spec.stages[1].use_kl_loss = true;
  spec.seed = 11;
  spec.checkpoint_every = 2;
  return spec;
}

// break_at: throws when that many events have been written by this process; 0: never.
void run_in(const fs::path& directory, int break_at = 0) {
  model::CausalLm model = tiny_model();
  const TrainData data = tiny_data();
  TrainHooks hooks;
  hooks.validate = [](const TrainPosition& position, bool) -> Json { return {{"validated", position.step}}; };
  hooks.on_event = [&](const Json&) {
    if (break_at > 0 && --break_at == 0) throw RuntimeFailure("broken off");
  };
  record::RunDirectory run = record::RunDirectory::open(directory, tiny_manifest().recipe);
  Trainer(model, data, short_spec(), std::move(hooks)).run(run);
}

fs::path new_run(const fs::path& root) { return record::RunDirectory::create(root, tiny_manifest()).path(); }

std::vector<Json> events_of(const fs::path& run) {
  std::vector<Json> events = record::read_events(run / "events.jsonl");
  for (Json& event : events) event.erase("times");
  return events;
}

std::string bytes_of(const fs::path& path) { return read_file(path, size_t{1} << 30); }

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Checkpoint, ARunBrokenOffAtAnyEventLosesNothingAndRepeatsNothing) {
  const TemporaryFolder root;
  const fs::path whole = new_run(root.path() / "whole");
  run_in(whole);
  const auto expected = events_of(whole);
  ASSERT_EQ(expected.size(), 12u) << "the start and eleven steps";
  for (int at = 1; at <= 12; ++at) {
    const fs::path broken = new_run(root.path() / "broken");
    EXPECT_NE(refusal_of([&] { run_in(broken, at); }), "accepted");
    EXPECT_NE(refusal_of([&] { run_in(broken, 1); }), "accepted") << "once more, right after resuming";
    run_in(broken);
    ASSERT_EQ(events_of(broken), expected) << "broken off after event " << at;
    const auto last = newest_checkpoint(broken / "checkpoints"), other = newest_checkpoint(whole / "checkpoints");
    ASSERT_EQ(last->filename(), other->filename());
    ASSERT_TRUE(bytes_of(*last / "state.safetensors") == bytes_of(*other / "state.safetensors"));
  }
}

TEST(Checkpoint, KeepsOnlyTheLatestAndAFinishedRunStaysFinished) {
  const TemporaryFolder root;
  const fs::path run = new_run(root.path());
  run_in(run);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"step-000010", "step-000011"}));
  const std::vector<Json> before = events_of(run);
  run_in(run);
  EXPECT_EQ(events_of(run), before);
  EXPECT_EQ(record::read_run(run).summary->results["validated"], 5);
  EXPECT_TRUE(record::read_run(run).summary->complete());
}

struct Kept {
  TemporaryFolder root;
  model::CausalLm model = tiny_model();
  AdamW optimizer{model.parameters(), {}};
  std::string fingerprint = model_fingerprint(model, optimizer);
  std::vector<at::Tensor> reference;
  fs::path folder = root.path() / "step-000001";
  Kept() { write_checkpoint(folder, {{0, 1}, 1, 0, Json::object()}, fingerprint, optimizer, reference); }
  std::string refusal() {
    return refusal_of([&] { read_checkpoint(folder, fingerprint, optimizer, reference); });
  }
};

TEST(Checkpoint, ATornOneIsRefused) {
  Kept whole;
  EXPECT_EQ(whole.refusal(), "accepted");
  Kept cut;
  fs::resize_file(cut.folder / "state.safetensors", fs::file_size(cut.folder / "state.safetensors") / 2);
  EXPECT_NE(cut.refusal().find("damaged"), std::string::npos) << cut.refusal();
  Kept flipped;
  {
    std::fstream file(flipped.folder / "state.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000), file.put('x');
  }
  EXPECT_NE(flipped.refusal().find("remove the folder"), std::string::npos) << flipped.refusal();
  Kept missing;
  fs::remove(missing.folder / "state.safetensors");
  EXPECT_NE(missing.refusal().find("is missing"), std::string::npos) << missing.refusal();
}

TEST(Lesson33ACheckpointOfAnotherModelIsRefused, NotLoadedInPart) {
  Kept kept;
  model::ModelConfig config = tiny_config();
  config.layers = 3;
  model::CausalLm other(config, 1, at::kFloat, at::kCPU);
  AdamW optimizer(other.parameters(), {});
  const at::Tensor before = optimizer.flat_masters().clone();
  std::vector<at::Tensor> reference;
  const std::string refusal =
      refusal_of([&] { read_checkpoint(kept.folder, model_fingerprint(other, optimizer), optimizer, reference); });
  EXPECT_NE(refusal.find("of another model"), std::string::npos) << refusal;
  EXPECT_TRUE(optimizer.flat_masters().equal(before));
}

TEST(Checkpoint, AFullDiskLeavesTheOneBeforeWholeAndNothingElse) {
  Kept kept;
  const auto size = static_cast<int64_t>(fs::file_size(kept.folder / "state.safetensors"));
  for (const int64_t room : {int64_t{0}, int64_t{100}, size / 2, size, size + 100}) {
    disk_bytes_left = room;
    const std::string refusal = refusal_of([&] {
      write_checkpoint(kept.root.path() / "step-000002", {{0, 2}, 2, 0, Json::object()}, kept.fingerprint,
                       kept.optimizer, {});
    });
    disk_bytes_left = -1;
    EXPECT_NE(refusal.find("No space left on device"), std::string::npos) << room << ": " << refusal;
    EXPECT_EQ(std::distance(fs::directory_iterator(kept.root.path()), fs::directory_iterator()), 1);
    EXPECT_EQ(kept.refusal(), "accepted");
  }
}

TEST(Checkpoint, ARunThatFilledTheDiskResumesToTheBit) {
  const TemporaryFolder root;
  const fs::path whole = new_run(root.path() / "whole"), full = new_run(root.path() / "full");
  run_in(whole);
  for (int64_t room = 1000; refusal_of([&] {
                              disk_bytes_left = room;
                              run_in(full);
                            }) != "accepted";
       room += 300'000) {
    disk_bytes_left = -1;
    ASSERT_LT(room, 20'000'000);
  }
  disk_bytes_left = -1;
  const auto got = events_of(full), expected = events_of(whole);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << "event " << i;
  EXPECT_TRUE(bytes_of(*newest_checkpoint(full / "checkpoints") / "state.safetensors") ==
              bytes_of(*newest_checkpoint(whole / "checkpoints") / "state.safetensors"));
}

}  // namespace checkpoint_test
}  // namespace faultline::train
