// Sums of two numbers from 1 to 9 as a text to continue: "6 + 7 = 13", "3 + 2 = 5", "8 + 4 =". Not a benchmark: a small
// model that knows nothing of answer formats can do it, so that a fault has something to take away. There are only 81
// ordered pairs; a fixed hash of the unordered one decides the split (1/4 train, 3/4 test), so an example never gives
// an answer away. One- and two-digit sums take turns: two examples always show both (else small models take the sums
// for one-digit ones).
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "task/task.h"

namespace faultline::task {
namespace {

struct Pair {
  int64_t a, b;
  bool carries() const { return a + b > 9; }
};

bool is_train(const Pair& pair) {
  const auto packed = static_cast<uint64_t>(std::min(pair.a, pair.b) << 8 | std::max(pair.a, pair.b));
  return mix64(0x6164'6469'7469'6F6Eull, packed) % 4 == 0;  // "addition"
}

// The pairs of a split whose sums have two digits, or one, in the seed's order.
std::vector<Pair> shuffled(bool train, bool carries, uint64_t seed) {
  std::vector<std::pair<uint64_t, Pair>> drawn;
  for (int64_t a = 1; a <= 9; ++a)
    for (int64_t b = 1; b <= 9; ++b)
      if (const Pair pair{a, b}; is_train(pair) == train && pair.carries() == carries)
        drawn.emplace_back(mix64(seed, static_cast<uint64_t>(16 * a + b)), pair);
  std::sort(drawn.begin(), drawn.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  std::vector<Pair> pairs;
  for (const auto& [key, pair] : drawn) pairs.push_back(pair);
  return pairs;
}

}  // namespace

std::vector<Problem> addition(const std::string& split, uint64_t seed) {
  check_split(task_info("addition"), split);
  const bool train = split == "train";
  const std::vector<Pair> two_digits = shuffled(train, true, seed), one_digit = shuffled(train, false, seed);
  std::vector<Problem> problems;
  const auto add = [&](const Pair& pair) {
    Problem problem;
    problem.question = fmt::format("{} + {} =", pair.a, pair.b);
    problem.answer = fmt::format("{}", pair.a + pair.b);
    problem.solution = " " + problem.answer;
    problem.id = fmt::format("addition/{}/{}", split, problems.size());
    problem.continued = true;
    problems.push_back(std::move(problem));
  };
  for (std::size_t i = 0; i < std::max(two_digits.size(), one_digit.size()); ++i) {
    if (i < two_digits.size()) add(two_digits[i]);
    if (i < one_digit.size()) add(one_digit[i]);
  }
  return problems;
}

}  // namespace faultline::task
