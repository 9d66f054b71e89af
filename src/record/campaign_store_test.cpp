// Trials are stored once, whole, and for good; a damaged store is a sentence.
#include "record/campaign_store.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "base/child_process.h"
#include "base/error.h"
#include "base/files/file.h"
#include "base/files/temporary_folder.h"

namespace faultline::record {
namespace campaign_store_test {

Trial some_trial(const std::string& cell, int64_t index) {
  return {.key = {cell, index},
          .seed = std::numeric_limits<uint64_t>::max() - static_cast<uint64_t>(index),
          .status = TrialStatus::kFail,
          .started = 1767225599.25,
          .finished = 1767225600.5,
          .fingerprint = "00ff",
          .outcome = {{"rate", 0.1}, {"p", NAN}},
          .evidence = {{"index", index}, {"text", std::string("nul\0inside", 10)}, {"pad", std::string(3000, 'x')}}};
}

template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& failure) {
    return failure.what();
  }
  return "accepted";
}

// A closed store: everything is in the one file.
std::string stored_bytes(const std::filesystem::path& path) {
  {
    CampaignStore store(path);
    for (int64_t index = 0; index < 8; ++index) EXPECT_TRUE(store.insert(some_trial("a", index)));
  }
  return read_file(path, 1 << 24);
}

void put(const std::filesystem::path& path, std::string_view bytes) {
  for (const char* ending : {"", "-wal", "-shm"}) std::filesystem::remove(path.string() + ending);
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(CampaignStore, ReadsBackEveryFieldOfATrial) {
  const TemporaryFolder directory;
  CampaignStore store(directory.path() / "campaign.sqlite");
  const Trial written = some_trial("fsdp 'quoted'; DROP TABLE trial", 3);
  EXPECT_TRUE(store.insert(written));
  const Trial read = store.trials(written.key.cell).at(0);
  EXPECT_EQ(read.key, written.key);
  EXPECT_EQ(read.seed, written.seed);
  EXPECT_EQ(read.status, TrialStatus::kFail);
  EXPECT_EQ(read.started, written.started);
  EXPECT_EQ(read.finished, written.finished);
  EXPECT_EQ(read.fingerprint, "00ff");
  EXPECT_EQ(read.outcome, Json({{"rate", 0.1}, {"p", "NaN"}}));
  EXPECT_EQ(read.evidence, written.evidence);
}

TEST(CampaignStore, KeepsTheFirstOfTwoEqualTrials) {
  const TemporaryFolder directory;
  CampaignStore store(directory.path() / "campaign.sqlite");
  EXPECT_TRUE(store.insert(some_trial("a", 0)));
  Trial again = some_trial("a", 0);
  again.evidence = {{"other", true}};
  EXPECT_FALSE(store.insert(again));
  EXPECT_EQ(store.trials("a").at(0).evidence, some_trial("a", 0).evidence);
  EXPECT_TRUE(store.insert(some_trial("a", 1))) << "the refused one leaves no transaction open";
  EXPECT_EQ(store.count("a"), 2);
}

TEST(CampaignStore, SetsErrorsAsideAsOftenAsTheyComeAndNothingElse) {
  const TemporaryFolder directory;
  CampaignStore store(directory.path() / "campaign.sqlite");
  Trial error = some_trial("e5", 1);
  error.status = TrialStatus::kError;
  EXPECT_TRUE(store.insert(some_trial("e5", 0)));
  EXPECT_TRUE(store.insert(error));
  EXPECT_EQ(store.set_errors_aside({{"e5", 0}}), 0) << "what died is a finding";
  EXPECT_EQ(store.set_errors_aside({{"e5", 0}, {"e5", 1}, {"e5", 2}}), 1);
  EXPECT_EQ(store.pending({"e5"}, 2), (std::vector<TrialKey>{{"e5", 1}}));
  EXPECT_TRUE(store.insert(error));
  EXPECT_EQ(store.set_errors_aside({{"e5", 1}}), 1);
  for (const int64_t number : {1, 2}) {
    const std::vector<Trial> kept = store.trials(earlier_attempt("e5", number));
    ASSERT_EQ(kept.size(), 1u);
    EXPECT_EQ(kept[0].evidence, error.evidence);
    EXPECT_EQ(attempted_cell(kept[0].key.cell), "e5");
  }
  EXPECT_EQ(attempted_cell("pilot:e5"), "pilot:e5");
}

TEST(CampaignStore, KnowsWhatIsLeftWithCellsInterleaved) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "campaign.sqlite";
  {
    CampaignStore store(path);
    EXPECT_TRUE(store.insert(some_trial("b", 0)));
    EXPECT_TRUE(store.insert(some_trial("a", 2)));
    EXPECT_TRUE(store.insert(some_trial("a", 7)));  // beyond what is asked
  }
  CampaignStore store(path);
  const std::vector<TrialKey> found = store.pending({"b", "a"}, 3);
  EXPECT_EQ(found, (std::vector<TrialKey>{{"a", 0}, {"b", 1}, {"a", 1}, {"b", 2}}));
  EXPECT_TRUE(store.pending({}, 3).empty());
  EXPECT_TRUE(store.pending({"a"}, 0).empty());
  std::vector<TrialKey> visited;
  store.for_each([&](Trial&& trial) { visited.push_back(trial.key); });
  EXPECT_EQ(visited, (std::vector<TrialKey>{{"a", 2}, {"a", 7}, {"b", 0}}));
}

TEST(CampaignStore, LosesNothingAndDoublesNothingUnderKills) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "campaign.sqlite";
  const std::vector<std::string> cells = {"a", "b", "c"};
  std::mt19937 random(11);
  std::set<uint64_t> reported;
  for (int round = 0; round < 50; ++round) {
    ChildProcess child([&](const ChildProcess::Report& report) {
      CampaignStore store(path);
      for (const TrialKey& key : store.pending(cells, 3000)) {
        if (!store.insert(some_trial(key.cell, key.index))) throw RuntimeFailure("twice");
        report(static_cast<uint64_t>(key.index) * 3 + static_cast<uint64_t>(key.cell[0] - 'a'));
      }
    });
    for (const uint64_t key : child.kill_after(random() % 4, random() % 20000))
      ASSERT_TRUE(reported.insert(key).second) << "done twice";
  }
  CampaignStore store(path);
  std::set<uint64_t> found;
  store.for_each([&](Trial&& trial) {
    EXPECT_EQ(trial.evidence["index"], trial.key.index);
    EXPECT_TRUE(found.insert(static_cast<uint64_t>(trial.key.index) * 3 + (trial.key.cell[0] - 'a')).second);
  });
  EXPECT_GT(reported.size(), 0u);
  EXPECT_TRUE(std::includes(found.begin(), found.end(), reported.begin(), reported.end()))
      << "a reported trial is lost";
  EXPECT_LE(found.size(), reported.size() + 50) << "each kill hides at most one report";
}

TEST(CampaignStore, LetsTwoProcessesShareTheWork) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "campaign.sqlite";
  const auto work = [&](const ChildProcess::Report& report) {
    CampaignStore store(path);
    for (int64_t index = 0; index < 60; ++index) {
      if (store.insert(some_trial("a", index))) report(static_cast<uint64_t>(index));
    }
  };
  ChildProcess first(work);
  ChildProcess second(work);
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
  EXPECT_EQ(first.reports().size() + second.reports().size(), 60u);
  EXPECT_EQ(CampaignStore(path).count("a"), 60);
}

TEST(CampaignStore, RefusesALaterVersionAndOtherDatabases) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "campaign.sqlite";
  {
    CampaignStore store(path);
  }
  Database(path).execute("PRAGMA user_version = 2");
  EXPECT_NE(refusal_of([&] { CampaignStore store(path); }).find("campaign version 2, this program knows 1"),
            std::string::npos);
  const auto other = directory.path() / "other.sqlite";
  Database(other).execute("CREATE TABLE mine(x)");
  EXPECT_NE(refusal_of([&] { CampaignStore store(other); }).find("not a campaign of faultline"), std::string::npos);
  EXPECT_EQ(Database(other).integer("SELECT count(*) FROM sqlite_schema"), 1) << "left as it was";
}

std::map<std::string, std::string> files_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename().string()] = read_file(entry.path(), size_t{1} << 26);
  return files;
}

TEST(CampaignStore, ChangesNothingInADatabaseThatIsNotItsOwn) {
  const TemporaryFolder directory;
  const auto other = directory.path() / "cookies.sqlite";
  Database(other).execute("CREATE TABLE mine(x); INSERT INTO mine VALUES (1);");
  const auto before = files_in(directory.path());
  for (const StoreUse use : {StoreUse::kWrite, StoreUse::kRead})
    EXPECT_NE(refusal_of([&] { CampaignStore store(other, use); }).find("not a campaign of faultline"),
              std::string::npos);
  EXPECT_EQ(files_in(directory.path()), before);
}

TEST(CampaignStore, IsReadWithoutATrace) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "50% of? #1.sqlite";
  ASSERT_TRUE(CampaignStore(path).insert(some_trial("a", 0)));
  const auto before = files_in(directory.path());
  {
    CampaignStore store(path, StoreUse::kRead);
    EXPECT_EQ(store.trials("a").size(), 1u);
    EXPECT_NE(refusal_of([&] { (void)store.insert(some_trial("a", 1)); }), "accepted");
  }
  EXPECT_EQ(files_in(directory.path()), before);
  EXPECT_NE(refusal_of([&] { CampaignStore store(directory.path() / "none.sqlite", StoreUse::kRead); }), "accepted");
  EXPECT_EQ(files_in(directory.path()), before) << "nothing is created by reading";
}

TEST(CampaignStore, IsReadWhileItIsWritten) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "campaign.sqlite";
  CampaignStore writer(path);
  ASSERT_TRUE(writer.insert(some_trial("a", 0)));
  CampaignStore reader(path, StoreUse::kRead);
  EXPECT_EQ(reader.trials("a").size(), 1u);
  ASSERT_TRUE(writer.insert(some_trial("a", 1)));
  EXPECT_EQ(reader.trials("a").size(), 2u);
}

TEST(CampaignStore, SaysThatItWasWrittenToWhileItWasRead) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "campaign.sqlite";
  ASSERT_TRUE(CampaignStore(path).insert(some_trial("a", 0)));
  CampaignStore reader(path, StoreUse::kRead);
  ASSERT_TRUE(CampaignStore(path).insert(some_trial("a", 1)));
  EXPECT_NE(refusal_of([&] { (void)reader.trials("a"); }).find("read it again"), std::string::npos);
}

TEST(CampaignStore, RefusesAVerdictWithoutEvidence) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "campaign.sqlite";
  CampaignStore store(path);
  EXPECT_TRUE(store.insert(some_trial("a", 0)));
  Database(path).execute("DELETE FROM evidence");
  EXPECT_THROW(store.trials("a"), EvidenceError);
}

TEST(CampaignStore, RefusesRowsThatWereEditedIntoNonsense) {
  for (const char* edit : {"UPDATE trial SET outcome = '{'", "UPDATE evidence SET body = x'00ff'",
                           "UPDATE trial SET seed = '-1'", "UPDATE trial SET seed = '99999999999999999999'"}) {
    const TemporaryFolder directory;
    const auto path = directory.path() / "campaign.sqlite";
    CampaignStore store(path);
    EXPECT_TRUE(store.insert(some_trial("a", 0)));
    Database(path).execute(edit);
    EXPECT_NE(refusal_of([&] { store.trials("a"); }).find("campaign.sqlite: cell 'a' trial 0"), std::string::npos)
        << edit;
  }
}

TEST(CampaignStore, FindsADamagedPageWhenOpenedNotWhenReached) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "campaign.sqlite";
  const std::string whole = stored_bytes(path);
  constexpr size_t kPageBytes = 4096;
  ASSERT_GT(whole.size(), 4 * kPageBytes);
  for (size_t page = 1; page < whole.size() / kPageBytes; ++page) {
    std::string damaged = whole;
    damaged.replace(page * kPageBytes, kPageBytes, kPageBytes, '\xAA');
    put(path, damaged);
    EXPECT_NE(refusal_of([&] { CampaignStore store(path); }), "accepted") << "page " << page;
  }
}

TEST(CampaignStore, AnswersADamagedFileWithASentence) {
  const TemporaryFolder directory;
  const auto path = directory.path() / "campaign.sqlite";
  const std::string whole = stored_bytes(path);
  std::mt19937 random(2);
  int refused = 0;
  const auto use = [&] {
    CampaignStore store(path);
    store.for_each([](Trial&&) {});
    return store.insert(some_trial("new", 0));
  };
  for (int round = 0; round < 400; ++round) {
    std::string damaged = whole;
    if (round < 100) damaged.resize(random() % whole.size());
    for (int hit = 0; round >= 100 && hit < 1 << (round % 8); ++hit) {
      damaged[random() % whole.size()] = static_cast<char>(random());
    }
    put(path, damaged);
    const std::string refusal = refusal_of(use);
    if (refusal == "accepted") continue;
    ++refused;
    ASSERT_EQ(refusal.find(path.string() + ": "), 0u) << refusal;
  }
  EXPECT_GT(refused, 200);
  put(path, "this is no database, but it is longer than the header of one would be, is it not? yes, it is, by far.");
  EXPECT_NE(refusal_of(use).find("the file is damaged or no database"), std::string::npos);
  EXPECT_NE(refusal_of([] { CampaignStore store("/nonexistent/campaign.sqlite"); }).find("cannot open"),
            std::string::npos);
}

}  // namespace campaign_store_test
}  // namespace faultline::record
