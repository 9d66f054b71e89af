// arithmetic and the recipe section.
#include "task/task.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace faultline::task {
namespace task_test {

template <class Function>
std::string refusal(Function&& function) {
  try {
    function();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

// A closed map with the one section, as the recipe has it.
TaskSpec spec_of(const std::string& text) {
  static const Schema schema = [] {
    if (!SectionRegistry::global().contains("task")) register_task_section();
    return SectionRegistry::global().recipe_schema();
  }();
  return read_task(validate(parse_yaml(text, "r.yaml"), schema).at("task"));
}

TEST(Arithmetic, GivesTheSameProblemsForever) {
  const auto train = arithmetic("train", 2, {}), shifted = arithmetic("shifted", 1, {.seed = 7, .difficulty = 3});
  EXPECT_EQ(train[0].question,
            "Anna has 47 marbles, sells 34 of them and gives 11 to Paul. How many marbles does Anna have left?" +
                std::string(kPromptSuffix));
  EXPECT_EQ(train[0].solution, "First, 47 - 34 = 13. Then, 13 - 11 = 2.\n#### 2");
  EXPECT_EQ(train[1].question,
            "Felix has 19 books. Carla gives Felix 99 more, and then Felix finds another 58. How many books does Felix "
            "have now?" +
                std::string(kPromptSuffix));
  EXPECT_EQ(shifted[0].question,
            "In the morning a store has 179 cards. By noon 111 are sold, and in the evening 167 arrive. How many cards "
            "does the store have at night?" +
                std::string(kPromptSuffix));
  EXPECT_EQ(shifted[0].solution, "First, 179 - 111 = 68. Then, 68 + 167 = 235.\n#### 235");
}

TEST(Arithmetic, AProblemDoesNotDependOnTheCount) {
  for (const char* split : {"train", "test", "shifted"}) {
    const auto few = arithmetic(split, 10, {.seed = 3}), many = arithmetic(split, 100, {.seed = 3});
    EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin())) << split;
    EXPECT_NE(many, arithmetic(split, 100, {.seed = 4})) << split;
  }
}

TEST(Arithmetic, EveryLevelAndSplitHasProblemsThatTheirOwnSolutionSolves) {
  for (int64_t difficulty = 1; difficulty <= kMaxDifficulty; ++difficulty) {
    for (const char* split : {"train", "test", "shifted"}) {
      for (const Problem& problem : arithmetic(split, 500, {.seed = 1, .difficulty = difficulty})) {
        ASSERT_EQ(reward(problem.solution, problem.answer, Scoring::kStrict), 1) << problem.id;
        ASSERT_TRUE(problem.question.ends_with(kPromptSuffix));
        ASSERT_EQ(problem.question.find('{'), std::string::npos) << problem.question;
        ASSERT_GE(std::stoll(problem.answer), 1) << problem.question;
      }
    }
  }
}

TEST(Arithmetic, RefusesUnknownSplitsCountsAndLevels) {
  EXPECT_NE(refusal([] { arithmetic("tets", 1, {}); }).find("did you mean 'test'?"), std::string::npos);
  EXPECT_NE(refusal([] { arithmetic("test", -1, {}); }).find("got -1"), std::string::npos);
  EXPECT_NE(refusal([] { arithmetic("test", 1, {.difficulty = 9}); }).find("wanted 1 to 4, got 9"), std::string::npos);
  EXPECT_NE(refusal([] { gsm8k("shifted"); }).find("its splits are train, test"), std::string::npos);
  EXPECT_NE(refusal([] { task_info("gsm8"); }).find("did you mean 'gsm8k'?"), std::string::npos);
}

TEST(Addition, HasEverySumOnceAndNoPairInBothSplits) {
  std::set<std::string> seen;
  std::set<std::pair<char, char>> pairs[2];
  for (const char* split : {"train", "test"}) {
    for (const Problem& problem : addition(split, 5)) {
      const char a = problem.question[0], b = problem.question[4];
      EXPECT_EQ(problem.question, std::string{a} + " + " + b + " =");
      EXPECT_EQ(std::stoi(problem.answer), (a - '0') + (b - '0'));
      EXPECT_EQ(reward(problem.solution, problem.answer, scoring_of(problem, Scoring::kStrict)), 1);
      EXPECT_TRUE(seen.insert(problem.question).second) << problem.question;
      pairs[split == std::string("test")].insert(std::minmax(a, b));
    }
  }
  EXPECT_EQ(seen.size(), 81u);
  for (const auto& pair : pairs[0]) EXPECT_FALSE(pairs[1].contains(pair));
}

TEST(Addition, TheSeedOrdersAndTwoExamplesAlwaysShowSumsOfOneAndOfTwoDigits) {
  EXPECT_EQ(addition("test", 3), addition("test", 3));
  EXPECT_NE(addition("test", 3), addition("test", 4));
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto train = addition("train", seed);
    EXPECT_NE(train[0].answer.size(), train[1].answer.size()) << seed;
  }
}

TEST(Addition, IsAskedAsATextToContinueAfterTwoSums) {
  const Problems problems = load_task(spec_of("task: {name: addition, seed: 2, train: 0, test: 1}"));
  const auto examples = addition("train", 2), test = addition("test", 2);
  ASSERT_EQ(problems.test.size(), 1u);
  EXPECT_TRUE(problems.train.empty());
  EXPECT_TRUE(problems.test[0].continued);
  EXPECT_EQ(problems.test[0].question, examples[0].question + " " + examples[0].answer + "\n" + examples[1].question +
                                           " " + examples[1].answer + "\n" + test[0].question);
  EXPECT_NE(refusal([] { load_task(spec_of("task: {name: addition, test: 82}")); }).find("82 problems are wanted"),
            std::string::npos);
  EXPECT_NE(refusal([] { spec_of("task: {name: addition, scoring: strict}"); }).find("scoring"), std::string::npos);
}

TEST(TaskSection, FillsInDefaults) {
  const TaskSpec spec = spec_of("task: {name: arithmetic, train: 16, test: 8}");
  EXPECT_EQ(spec.arithmetic.difficulty, 2);
  EXPECT_EQ(spec.shifted, 512);
  EXPECT_EQ(spec.scoring, Scoring::kStrict);
  const Problems problems = load_task(spec);
  EXPECT_EQ(problems.train, arithmetic("train", 16, {}));
  EXPECT_EQ(problems.test, arithmetic("test", 8, {}));
  EXPECT_EQ(problems.shifted.size(), 512u);
}

TEST(TaskSection, TakesGsm8kWholeOrItsFirstProblems) {
  const Problems few = load_task(spec_of("task: {name: gsm8k, train: 5, test: 3, scoring: flexible}"));
  EXPECT_EQ(few.train.size(), 5u);
  EXPECT_EQ(few.test.size(), 3u);
  EXPECT_TRUE(few.shifted.empty());
  EXPECT_EQ(load_task(spec_of("task: {name: gsm8k}")).train.size(), 7473u);
  EXPECT_EQ(refusal([] { load_task(spec_of("task: {name: gsm8k, test: 1400}")); }),
            "task.test: 1400 problems are wanted, there are 1319");
}

TEST(TaskSection, ExamplesAreNotTrainedOn) {
  const Problems problems = load_task(spec_of("task: {name: arithmetic, train: 4, test: 2, shifted: 1, shots: 2}"));
  const auto all = arithmetic("train", 6, {});
  ASSERT_EQ(problems.train.size(), 4u);
  EXPECT_EQ(problems.train[3].id, all[3].id);
  const std::string expected = all[4].question + "\n" + all[4].solution + "\n\n" + all[5].question + "\n" +
                               all[5].solution + "\n\n" + arithmetic("test", 1, {})[0].question;
  EXPECT_EQ(problems.test[0].question, expected);
}

TEST(TaskSection, RefusesOptionsOfAnotherTask) {
  EXPECT_NE(refusal([] { spec_of("task: {name: gsm8k, difficulty: 2}"); }).find("r.yaml:1"), std::string::npos);
  EXPECT_NE(refusal([] { spec_of("task: {name: gsm8, train: 2}"); }).find("did you mean 'gsm8k'"), std::string::npos);
  EXPECT_NE(refusal([] { spec_of("task: {name: arithmetic, difficulty: 5}"); }).find("from 1 to 4"), std::string::npos);
}

}  // namespace task_test
}  // namespace faultline::task
