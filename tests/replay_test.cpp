// Every fuzz target without libFuzzer, in the ordinary build: each file of its corpus as it is, and a fixed number of
// damaged copies made from fixed seeds. A finding ends the process; the handler below says which input it was, and
// `FAULTLINE_REPLAY_SAVE=FILE` keeps its bytes. FAULTLINE_REPLAY_INPUTS sets how many damaged copies a target gets.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/fuzz_target.h"
#include "base/text.h"

namespace faultline {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

std::array<char, 512> current = {};  // what runs now, for the handler
const Bytes* current_bytes = nullptr;

void on_finding(int signal) {
  (void)!::write(STDERR_FILENO, current.data(), std::strlen(current.data()));
  if (const char* file = std::getenv("FAULTLINE_REPLAY_SAVE"); file != nullptr && current_bytes != nullptr) {
    std::FILE* out = std::fopen(file, "wb");
    if (out != nullptr) std::fwrite(current_bytes->data(), 1, current_bytes->size(), out), std::fclose(out);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void feed(const std::string& target, const std::string& label, const Bytes& bytes) {
  std::snprintf(current.data(), current.size(), "finding in %s: %s (%zu bytes)\n", target.c_str(), label.c_str(),
                bytes.size());
  current_bytes = &bytes;
  // A copy of exactly this size: one byte too far is a finding under ASan.
  const auto copy = std::make_unique<uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  EXPECT_EQ(fuzz_targets().at(target)(copy.get(), bytes.size()), 0);
  current_bytes = nullptr;
}

std::vector<std::pair<std::string, Bytes>> corpus_of(const std::string& target) {
  std::vector<std::pair<std::string, Bytes>> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(FAULTLINE_CORPUS) / target, ignored)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files.emplace_back(entry.path().filename().string(), Bytes(std::istreambuf_iterator<char>(file), {}));
  }
  std::sort(files.begin(), files.end());
  return files;
}

class Damage {
 public:
  explicit Damage(uint64_t seed) : state_(seed) {}

  Bytes of(Bytes bytes, const Bytes& other) {
    const uint64_t edits = 1 + next(4);
    for (uint64_t i = 0; i < edits; ++i) edit(bytes, other);
    return bytes;
  }

 private:
  uint64_t next(uint64_t below) { return below == 0 ? 0 : (state_ = mix64(state_, 1)) % below; }
  uint8_t interesting() {
    constexpr std::array<uint8_t, 12> kBytes = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '}', '[', ',', '\n', '9'};
    return next(2) == 0 ? kBytes[next(kBytes.size())] : static_cast<uint8_t>(next(256));
  }

  void edit(Bytes& bytes, const Bytes& other) {
    const auto at = [&](uint64_t place) { return bytes.begin() + static_cast<std::ptrdiff_t>(place); };
    const uint64_t place = next(bytes.size() + 1), length = next(std::min<uint64_t>(bytes.size() - place, 64) + 1);
    switch (next(6)) {
      case 0:
        if (place < bytes.size()) bytes[place] ^= static_cast<uint8_t>(1U << next(8));
        break;
      case 1: bytes.insert(at(place), interesting()); break;
      case 2: bytes.erase(at(place), at(place + length)); break;
      case 3: {
        const Bytes again(at(place), at(place + length));
        bytes.insert(at(next(bytes.size() + 1)), again.begin(), again.end());
        break;
      }
      case 4:
        if (place < bytes.size()) bytes[place] = interesting();
        break;
      default: {
        const uint64_t from = next(other.size() + 1), count = next(other.size() - from + 1);
        bytes.resize(place);
        bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + count));
      }
    }
  }

  uint64_t state_;
};

// Damaged copies of each target: a minute for all of them together, without a sanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kInputs = 6000;
#else
constexpr int kInputs = 300000;
#endif
// Targets whose inputs take longer get fewer: one in so many. Parquet starts a process for each; the others write
// files.
const std::map<std::string, int> kShares = {
    {"parquet_fuzz", 300}, {"recipe_fuzz", 10}, {"folder_fuzz", 20}, {"jsonl_fuzz", 2}};

class Replay : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, on_finding);
  }
};

TEST_P(Replay, NoInputOfTheCorpusAndNoDamagedCopyIsAFinding) {
  const std::string& target = GetParam();
  const auto files = corpus_of(target);
  if (!fs::exists(FAULTLINE_CORPUS)) GTEST_SKIP() << "no corpus beside this build";
  ASSERT_FALSE(files.empty()) << "tests/corpus/" << target << " is empty: a target without a corpus is not replayed";
  for (const auto& [name, bytes] : files) feed(target, name, bytes);
  const char* wish = std::getenv("FAULTLINE_REPLAY_INPUTS");
  const int wanted = wish != nullptr ? std::atoi(wish) : kInputs;
  const int inputs = wanted / (kShares.contains(target) ? kShares.at(target) : 1);
  for (int i = 0; i < inputs; ++i) {
    const auto number = static_cast<uint64_t>(i);
    const uint64_t seed = mix64(hash64(target), number);
    const auto& [name, bytes] = files[number % files.size()];
    feed(target, name + " damaged with seed " + std::to_string(i),
         Damage(seed).of(bytes, files[seed % files.size()].second));
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, target] : fuzz_targets()) all.push_back(name);
  return all;
}

TEST(ReplayTargets, AreAllHere) { EXPECT_GE(names().size(), 14U); }

INSTANTIATE_TEST_SUITE_P(Targets, Replay, ::testing::ValuesIn(names()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace faultline
