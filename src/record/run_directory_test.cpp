// Run directories: named, locked, resumed, refused.
#include "record/run_directory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <set>

#include "base/child_process.h"
#include "base/error.h"
#include "base/files/file.h"
#include "base/files/temporary_folder.h"
#include "record/document.h"

namespace faultline::record {
namespace run_directory_test {

const Clock kNoon = [] { return 1767225599.5; };  // 2025-12-31T23:59:59.5Z

Manifest some_manifest() {
  Manifest manifest;
  manifest.recipe_name = "e5";
  manifest.recipe = {{"seed", 7}, {"train", {{"lr", 1e-5}, {"steps", 40}}}};
  manifest.seeds = {{"seed", 7}};
  manifest.versions = {{"faultline", "0.1"}};
  manifest.host = host_description();
  manifest.device = {{"name", "cpu"}};
  manifest.plan = {{{"name", "npu_noise"}, {"sites", {"layers.3.mlp.down_proj"}}}};
  manifest.keyed_by = "row";
  return manifest;
}

template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const RuntimeFailure& failure) {
    return failure.what();
  }
  return "accepted";
}

std::vector<std::filesystem::path> visible(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (!entry.path().filename().string().starts_with('.')) found.push_back(entry.path());
  }
  return found;
}

TEST(RunDirectory, IsNamedByRecipeTimeAndHashAndHoldsItsManifest) {
  const TemporaryFolder root;
  const RunDirectory run = RunDirectory::create(root.path() / "runs", some_manifest(), kNoon);
  EXPECT_EQ(run.path().filename(), "e5-20251231T235959Z-" + some_manifest().hash().substr(0, 8));
  const Manifest read = read_run(run.path()).manifest;
  EXPECT_EQ(read.recipe, some_manifest().recipe);
  EXPECT_EQ(read.plan, some_manifest().plan);
  EXPECT_EQ(read.keyed_by, "row");
  EXPECT_EQ(read.created, 1767225599.5);
  EXPECT_EQ(read.hash(), some_manifest().hash());
  EXPECT_TRUE(std::filesystem::is_directory(run.path() / "checkpoints"));
  EXPECT_EQ(run.checkpoint_path(40), run.path() / "checkpoints" / "step-000040");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root.path() / "runs"), {}), 1);
}

TEST(RunDirectory, NeverReusesAName) {
  const TemporaryFolder root;
  const RunDirectory first = RunDirectory::create(root.path(), some_manifest(), kNoon);
  const RunDirectory second = RunDirectory::create(root.path(), some_manifest(), kNoon);
  EXPECT_EQ(second.path().string(), first.path().string() + "-2");
  std::filesystem::create_directory(first.path().string() + "-3");  // empty, but somebody's
  EXPECT_EQ(RunDirectory::create(root.path(), some_manifest(), kNoon).path().string(), first.path().string() + "-4");
  EXPECT_TRUE(std::filesystem::is_empty(first.path().string() + "-3"));
}

TEST(RunDirectory, GivesParallelProcessesADirectoryEach) {
  const TemporaryFolder root;
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (int i = 0; i < 10; ++i) {
    children.push_back(std::make_unique<ChildProcess>([&](const ChildProcess::Report&) {
      RunDirectory run = RunDirectory::create(root.path(), some_manifest(), kNoon);
      run.events().append({{"pid", ::getpid()}});
      run.events().flush_step();
    }));
  }
  std::set<pid_t> expected;
  for (const auto& child : children) {
    EXPECT_EQ(child->wait(), 0);
    expected.insert(child->id());
  }
  std::set<pid_t> found;
  for (const auto& path : visible(root.path())) found.insert(read_run(path).events.at(0)["pid"].get<pid_t>());
  EXPECT_EQ(found, expected);
}

TEST(RunDirectory, CannotBeLedOutOfItsRootByAName) {
  EXPECT_EQ(sanitized_run_name("../../etc/passwd"), "_._.._etc_passwd");
  EXPECT_EQ(sanitized_run_name(""), "run");
  EXPECT_EQ(sanitized_run_name("."), "_");
  EXPECT_EQ(sanitized_run_name("-rf"), "_rf");
  EXPECT_EQ(sanitized_run_name(std::string("a\0/b\nc", 6)), "a__b_c");
  EXPECT_EQ(sanitized_run_name("e5.b-2"), "e5.b-2");
  EXPECT_EQ(sanitized_run_name(std::string(500, 'x')).size(), 80u);
  const TemporaryFolder root;
  Manifest manifest = some_manifest();
  manifest.recipe_name = "../outside";
  const RunDirectory run = RunDirectory::create(root.path() / "runs", manifest, kNoon);
  EXPECT_EQ(std::filesystem::canonical(run.path()).parent_path(), std::filesystem::canonical(root.path() / "runs"));
}

TEST(RunDirectory, RefusesASecondHandleAndNamesTheHolder) {
  const TemporaryFolder root;
  std::filesystem::path path;
  const std::string holder = "process " + std::to_string(::getpid()) + " on ";
  {
    const RunDirectory run = RunDirectory::create(root.path(), some_manifest(), kNoon);
    path = run.path();
    const std::string refusal = refusal_of([&] { RunDirectory::open(path, some_manifest().recipe); });
    EXPECT_EQ(refusal.find(path.string() + ": in use by " + holder), 0u) << refusal;
    ChildProcess child([&](const ChildProcess::Report&) { RunDirectory::open(path, some_manifest().recipe); });
    EXPECT_EQ(child.wait(), 1) << "another process must be refused as well";
  }
  EXPECT_EQ(refusal_of([&] { RunDirectory::open(path, some_manifest().recipe); }), "accepted");
}

TEST(RunDirectory, IsNotReleasedByAForkedChildThatEnds) {
  const TemporaryFolder root;
  auto run = std::make_unique<RunDirectory>(RunDirectory::create(root.path(), some_manifest(), kNoon));
  ChildProcess child([&](const ChildProcess::Report&) { run.reset(); });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_NE(refusal_of([&] { RunDirectory::open(run->path(), some_manifest().recipe); }), "accepted");
}

TEST(RunDirectory, IsFreeAgainWhenItsProcessWasKilled) {
  const TemporaryFolder root;
  ChildProcess child([&](const ChildProcess::Report& report) {
    RunDirectory run = RunDirectory::create(root.path(), some_manifest(), kNoon);
    run.events().append({{"k", 0}});
    run.events().flush_step();
    report(1);
    for (;;) ::pause();
  });
  uint64_t ready = 0;
  ASSERT_TRUE(child.next(ready));
  const auto path = visible(root.path()).at(0);
  EXPECT_NE(refusal_of([&] {
              RunDirectory::open(path, some_manifest().recipe);
            }).find("in use by process " + std::to_string(child.id()) + " on "),
            std::string::npos);
  child.kill();
  RunDirectory run = RunDirectory::open(path, some_manifest().recipe);
  EXPECT_EQ(run.events().lines(), 1u);
}

TEST(RunDirectory, RefusesToContinueAnotherRecipeAndNamesTheKey) {
  const TemporaryFolder root;
  const auto path = RunDirectory::create(root.path(), some_manifest(), kNoon).path();
  Json other = some_manifest().recipe;
  other["train"]["lr"] = 2e-5;
  const std::string refusal = refusal_of([&] { RunDirectory::open(path, other); });
  EXPECT_NE(refusal.find("they differ first at /train/lr"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find(some_manifest().hash()), std::string::npos) << refusal;
}

TEST(RunDirectory, RefusesAnEditedOrDamagedManifest) {
  const TemporaryFolder root;
  const auto path = RunDirectory::create(root.path(), some_manifest(), kNoon).path();
  const auto manifest = path / "manifest.json";
  const std::string text = read_file(manifest, 1 << 20);
  for (size_t place = 0; place < text.size(); ++place) {
    std::string damaged = text;
    damaged[place] = damaged[place] == '7' ? '8' : '7';
    write_file_atomically(manifest, damaged);
    const std::string refusal = refusal_of([&] { RunDirectory::open(path, some_manifest().recipe); });
    if (text[place] != ' ' && text[place] != '\n') {
      ASSERT_EQ(refusal.find(manifest.string()), 0u) << place << ": " << refusal;
    }
  }
  write_file_atomically(manifest, text);
  EXPECT_EQ(refusal_of([&] { RunDirectory::open(path, some_manifest().recipe); }), "accepted");
}

TEST(RunDirectory, RefusesALaterVersionAndAFolderThatIsNoRun) {
  const TemporaryFolder root;
  const auto path = RunDirectory::create(root.path(), some_manifest(), kNoon).path();
  write_file_atomically(path / "manifest.json", R"({"kind":"manifest","version":2,"future":true})");
  EXPECT_NE(refusal_of([&] { RunDirectory::open(path, some_manifest().recipe); }).find("written as version 2"),
            std::string::npos);
  const auto other = root.path() / "photos";
  std::filesystem::create_directory(other);
  EXPECT_NE(refusal_of([&] { RunDirectory::open(other, some_manifest().recipe); }).find("manifest.json: cannot open"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(other)) << "not even a lock file";
  EXPECT_NE(refusal_of([&] { read_run(root.path() / "missing"); }), "accepted");
}

TEST(RunDirectory, KeepsLedgerAndSummaryWithTheStepReached) {
  const TemporaryFolder root;
  const RunDirectory run = RunDirectory::create(root.path(), some_manifest(), kNoon);
  EXPECT_FALSE(read_run(run.path()).summary.has_value());
  run.write_ledger({{"npu_noise", {{"calls", 12}, {"rel_error", NAN}}}});
  run.write_summary({.step_reached = 30, .steps_planned = 40, .step_evaluated = 20, .results = {{"acc", 0.7}}});
  const RunRecord record = read_run(run.path());
  EXPECT_EQ(record.ledger->at("npu_noise").at("rel_error"), "NaN");
  EXPECT_EQ(record.summary->step_reached, 30);
  EXPECT_EQ(record.summary->steps_planned, 40);
  EXPECT_EQ(record.summary->step_evaluated, 20);
  EXPECT_EQ(record.summary->results["acc"], 0.7);
  EXPECT_FALSE(read_document(run.path() / "summary.json", "summary")["complete"].get<bool>());
  EXPECT_THROW(run.write_summary({.step_reached = 41, .steps_planned = 40}), InternalError);
  EXPECT_NE(refusal_of([&] { read_document(run.path() / "ledger.json", "summary"); }).find("wanted a summary"),
            std::string::npos);
}

TEST(RunDirectory, CallsARunCompleteOnlyIfItsLastStepWasTheOneEvaluated) {
  EXPECT_TRUE((Summary{.step_reached = 40, .steps_planned = 40}).complete());
  EXPECT_TRUE((Summary{.step_reached = 40, .steps_planned = 40, .step_evaluated = 40}).complete());
  EXPECT_FALSE((Summary{.step_reached = 40, .steps_planned = 40, .step_evaluated = 35}).complete());
  EXPECT_FALSE((Summary{.step_reached = 39, .steps_planned = 40, .step_evaluated = 39}).complete());
}

TEST(RunDirectory, DropsATornEventAndStaleTemporariesWhenContinued) {
  const TemporaryFolder root;
  const auto path = RunDirectory::create(root.path(), some_manifest(), kNoon).path();
  std::ofstream(path / "events.jsonl") << event_line(0, {{"k", 0}}) << "{\"v\":1,\"n\":1,\"k\"";
  std::ofstream(path / ".summary.json.faultline-tmp.1.0") << "{";
  RunDirectory run = RunDirectory::open(path, some_manifest().recipe);
  EXPECT_EQ(run.events().lines(), 1u);
  EXPECT_EQ(run.events().recovered().torn_bytes, 16u);
  EXPECT_FALSE(std::filesystem::exists(path / ".summary.json.faultline-tmp.1.0"));
}

TEST(RunDirectory, CanBeContinuedWheneverItsCreatorWasKilled) {
  const TemporaryFolder root;
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    ChildProcess child([&](const ChildProcess::Report& report) {
      for (;;) {
        RunDirectory::create(root.path(), some_manifest(), kNoon).write_summary({});
        report(1);
      }
    });
    child.kill_after(random() % 2, random() % 10000);
  }
  const auto runs = visible(root.path());
  EXPECT_FALSE(runs.empty());
  for (const auto& path : runs) {
    ASSERT_EQ(refusal_of([&] { RunDirectory::open(path, some_manifest().recipe); }), "accepted");
  }
}

}  // namespace run_directory_test
}  // namespace faultline::record
