// Two-step word problems with three numbers. Everything about problem i of a split is a pure function of (seed, split,
// difficulty, i), drawn with integers from the counter RNG, so it is the same on every platform and for every count.
//
// Note [Disjoint triples]: a fixed hash of the sorted triple decides which split may use it: 6/8 train, 1/8 test, 1/8
// shifted. The seed, the difficulty and the order of the numbers play no part, so no triple of one split occurs in
// another, not even between runs with different seeds.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "task/task.h"

namespace faultline::task {
namespace {

enum class Steps { kAddAdd, kAddSub, kSubAdd, kSubSub, kMulAdd, kMulSub };  // of (a, b, c); kMul…: c * a, then b

struct Template {
  Steps steps;
  const char* text;
};

constexpr Template kTemplates[] = {
    {Steps::kAddAdd,
     "{name} has {a} {item}. {other} gives {name} {b} more, and then {name} finds another {c}. "
     "How many {item} does {name} have now?"},
    {Steps::kAddAdd,
     "A shop sells {a} {item} on Monday, {b} on Tuesday and {c} on Wednesday. "
     "How many {item} does it sell on these three days?"},
    {Steps::kAddSub,
     "{name} has {a} {item} and buys {b} more. Then {name} gives {c} of them to {other}. "
     "How many {item} does {name} have left?"},
    {Steps::kAddSub,
     "A box holds {a} red {item} and {b} blue {item}. {name} takes {c} of them out. "
     "How many {item} are still in the box?"},
    {Steps::kSubAdd,
     "{name} has {a} {item} and loses {b} of them. Later {other} brings {name} {c} new ones. "
     "How many {item} does {name} have now?"},
    {Steps::kSubAdd,
     "There are {a} {item} on a shelf. {name} takes {b} away and {other} puts {c} others there. "
     "How many {item} are on the shelf now?"},
    {Steps::kSubSub,
     "{name} has {a} {item}, sells {b} of them and gives {c} to {other}. "
     "How many {item} does {name} have left?"},
    {Steps::kSubSub, "Of {a} {item} in a bag, {b} are broken and {c} are lost. How many good {item} are left?"},
    // From here on only where the difficulty has multiplication.
    {Steps::kMulAdd,
     "{name} fills {c} bags with {a} {item} each and has {b} more left over. "
     "How many {item} does {name} have?"},
    {Steps::kMulSub,
     "{name} buys {c} boxes of {a} {item} each and gives {b} {item} to {other}. "
     "How many {item} does {name} keep?"},
};
constexpr uint32_t kWithoutMultiplication = 8;

constexpr Template kShiftedTemplates[] = {
    {Steps::kAddAdd, "Three rooms of a museum show {a}, {b} and {c} {item}. How many {item} does the museum show?"},
    {Steps::kAddAdd,
     "{name} collected {a} {item}, {other} collected {b}, and their teacher added {c}. "
     "How many {item} were collected in all?"},
    {Steps::kAddSub,
     "A truck is loaded with {a} {item} in one town and {b} in the next, and {c} are unloaded in the "
     "third. How many {item} does the truck carry then?"},
    {Steps::kSubAdd,
     "In the morning a store has {a} {item}. By noon {b} are sold, and in the evening {c} arrive. "
     "How many {item} does the store have at night?"},
    {Steps::kMulSub,
     "Each of {c} crates contains {a} {item}. The workers remove {b} {item}. "
     "How many {item} remain in the crates?"},
};
constexpr uint32_t kShiftedWithoutMultiplication = 4;

constexpr const char* kNames[] = {"Anna", "Ben",  "Carla", "David", "Emma", "Felix", "Grace", "Hugo",
                                  "Ivy",  "Jack", "Kira",  "Leo",   "Mia",  "Noah",  "Olga",  "Paul"};
constexpr const char* kItems[] = {"apples", "marbles", "stamps",   "books",   "pencils", "cards",
                                  "coins",  "shells",  "stickers", "buttons", "beads",   "tickets"};

struct Level {
  int64_t low, high;  // of the numbers; shifted: high + 1 … 2 high + 1
  bool multiplies;    // by 2 … 9
};
constexpr std::array<Level, kMaxDifficulty> kLevels = {
    {{1, 9, false}, {10, 99, false}, {10, 99, true}, {100, 999, true}}};

struct Triple {
  int64_t a, b, c;
};

enum class Split { kTrain, kTest, kShifted };

Split split_of(const Triple& triple) {
  std::array<int64_t, 3> sorted = {triple.a, triple.b, triple.c};
  std::sort(sorted.begin(), sorted.end());
  uint64_t packed = 0;
  for (const int64_t number : sorted) packed = packed << 20 | static_cast<uint64_t>(number);
  const uint64_t bucket = mix64(0x7472'6970'6C65'7300ull, packed) % 8;  // "triples"; Note [Disjoint triples]
  return bucket == 0 ? Split::kTest : bucket == 1 ? Split::kShifted : Split::kTrain;
}

// Uniform in 0 … size-1 to within size / 2^32.
uint32_t choose(uint32_t word, uint64_t size) { return static_cast<uint32_t>(word * size >> 32); }

int64_t between(uint32_t word, int64_t low, int64_t high) {
  return low + choose(word, static_cast<uint64_t>(high - low + 1));
}

struct Worked {
  int64_t first, last;  // results of the two steps
  std::string text;
};

Worked work(Steps steps, const Triple& t) {
  const bool multiplies = steps == Steps::kMulAdd || steps == Steps::kMulSub;
  const bool adds_first = steps == Steps::kAddAdd || steps == Steps::kAddSub;
  const bool adds_last = steps == Steps::kAddAdd || steps == Steps::kSubAdd || steps == Steps::kMulAdd;
  const int64_t x = multiplies ? t.c : t.a, y = multiplies ? t.a : t.b, z = multiplies ? t.b : t.c;
  const int64_t first = multiplies ? x * y : adds_first ? x + y : x - y;
  const int64_t last = adds_last ? first + z : first - z;
  return {first, last,
          fmt::format("First, {} {} {} = {}. Then, {} {} {} = {}.\n#### {}", x,
                      multiplies   ? '*'
                      : adds_first ? '+'
                                   : '-',
                      y, first, first, adds_last ? '+' : '-', z, last, last)};
}

// The stream of one split; draws are counted by problem and attempt.
struct ProblemGenerator {
  Split split;
  std::string split_name;
  Level level;
  uint64_t key;

  PhiloxWords draw(uint64_t index, uint32_t attempt, uint32_t purpose) const {
    return philox(static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), attempt, purpose, key);
  }

  const Template& choose_template(uint32_t word) const {
    if (split == Split::kShifted)
      return kShiftedTemplates[choose(word,
                                      level.multiplies ? std::size(kShiftedTemplates) : kShiftedWithoutMultiplication)];
    return kTemplates[choose(word, level.multiplies ? std::size(kTemplates) : kWithoutMultiplication)];
  }

  Triple draw_triple(const PhiloxWords& words, Steps steps) const {
    const int64_t low = split == Split::kShifted ? level.high + 1 : level.low;
    const int64_t high = split == Split::kShifted ? 2 * level.high + 1 : level.high;
    const bool multiplies = steps == Steps::kMulAdd || steps == Steps::kMulSub;
    return {between(words.word[0], low, high), between(words.word[1], low, high),
            multiplies ? between(words.word[2], 2, 9) : between(words.word[2], low, high)};
  }

  Problem problem(uint64_t index) const;
};

// The template is kept for many attempts at its numbers, so that templates with rare numbers (a - b - c > 0) are used
// as often as others, and given up after that: with one-digit numbers a split may have no triple for one of them.
Problem ProblemGenerator::problem(uint64_t index) const {
  constexpr uint32_t kAttempts = 512;
  for (uint32_t attempt = 0;; ++attempt) {
    FL_ASSERT(attempt < 1000 * kAttempts);
    const PhiloxWords words = draw(index, attempt / kAttempts, 0);
    const Template& chosen = choose_template(words.word[0]);
    const Triple t = draw_triple(draw(index, attempt, 1), chosen.steps);
    if (split_of(t) != split) continue;
    const Worked worked = work(chosen.steps, t);
    if (worked.first < 1 || worked.last < 1) continue;
    const uint32_t name = choose(words.word[1], std::size(kNames));
    const uint32_t other = (name + 1 + choose(words.word[2], std::size(kNames) - 1)) % std::size(kNames);
    Problem problem;
    problem.question = fmt::format(fmt::runtime(chosen.text), fmt::arg("a", t.a), fmt::arg("b", t.b),
                                   fmt::arg("c", t.c), fmt::arg("name", kNames[name]), fmt::arg("other", kNames[other]),
                                   fmt::arg("item", kItems[choose(words.word[3], std::size(kItems))]));
    problem.question += kPromptSuffix;
    problem.answer = fmt::format("{}", worked.last);
    problem.solution = worked.text;
    problem.id = fmt::format("arithmetic/{}/{}", split_name, index);
    return problem;
  }
}

}  // namespace

std::vector<Problem> arithmetic(const std::string& split, int64_t count, const ArithmeticOptions& options) {
  check_split(task_info("arithmetic"), split);
  if (options.difficulty < 1 || options.difficulty > kMaxDifficulty)
    throw UsageError(fmt::format("arithmetic: difficulty: wanted 1 to {}, got {}", kMaxDifficulty, options.difficulty));
  if (count < 0) throw UsageError(fmt::format("arithmetic: {}: wanted a count of problems, got {}", split, count));
  const ProblemGenerator generator{
      split == "train"  ? Split::kTrain
      : split == "test" ? Split::kTest
                        : Split::kShifted,
      split, kLevels[static_cast<size_t>(options.difficulty - 1)],
      mix64(mix64(options.seed, static_cast<uint64_t>(options.difficulty)), hash64(split))};
  std::vector<Problem> problems;
  problems.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) problems.push_back(generator.problem(static_cast<uint64_t>(i)));
  return problems;
}

}  // namespace faultline::task
