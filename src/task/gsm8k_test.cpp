#include "task/gsm8k.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/files/temporary_folder.h"

namespace faultline::task {
namespace gsm8k_test {

constexpr const char* kOriginal = R"({"question": "How many?", "answer": "40+32 = 72\n#### 72"})";
constexpr const char* kVerl =
    R"({"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "How many? Let's think step by step and output the final answer after \"####\"."}], "ability": "math", "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"split": "train", "index": 0, "answer": "40+32 = 72\n#### 72", "question": "How many?"}})";

std::string refusal(const std::string& text) {
  try {
    (void)parse_gsm8k(text, "f.jsonl", "train");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t place = text.find(from);
  FL_ASSERT(place != std::string::npos);
  return text.replace(place, from.size(), to);
}

std::string file_refusal(const std::filesystem::path& file) {
  try {
    (void)read_gsm8k(file);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Gsm8k, BothSchemasGiveTheSameProblem) {
  const Problem expected{"How many?" + std::string(kPromptSuffix), "72", "40+32 = 72\n#### 72", "gsm8k/train/0"};
  EXPECT_EQ(parse_gsm8k(kOriginal, "f", "train"), std::vector<Problem>{expected});
  EXPECT_EQ(parse_gsm8k(kVerl, "f", "train"), std::vector<Problem>{expected});
  EXPECT_EQ(parse_gsm8k(fmt::format("{}\r\n{}\n", kOriginal, kVerl), "f", "train").size(), 2u);
}

TEST(Gsm8k, NamesLineAndFieldOfWhatIsMissingOrOfAnotherType) {
  const std::string first = fmt::format("{}\n", kOriginal);
  EXPECT_EQ(refusal(first + "{\"question\": \"q\"}\n"),
            "f.jsonl:2: answer: the field is missing; there are 'question'");
  EXPECT_EQ(refusal(first + "{}\n"), "f.jsonl:2: question: the field is missing; there are none");
  EXPECT_EQ(refusal("{\"question\": 7, \"answer\": \"#### 1\"}"), "f.jsonl:1: question: wanted a string, found 7");
  EXPECT_EQ(refusal("{\"question\": \" \", \"answer\": \"#### 1\"}"), "f.jsonl:1: question: the text is empty");
  EXPECT_EQ(refusal("[1]"), "f.jsonl:1: wanted a JSON object, found [1]");
  EXPECT_NE(refusal("{\"question\": \"q\", \"answer\": \"72\"}").find("f.jsonl:1: answer: no '#### N'"),
            std::string::npos);
}

TEST(Gsm8k, NamesTheFieldOfAVerlRecord) {
  EXPECT_EQ(refusal(replaced(kVerl, "\"ground_truth\": \"72\"", "\"ground_truth\": 72")),
            "f.jsonl:1: reward_model.ground_truth: wanted a string, found 72");
  EXPECT_EQ(refusal(replaced(kVerl, "ground_truth", "truth")),
            "f.jsonl:1: reward_model.ground_truth: the field is missing; there are 'style', 'truth'");
  EXPECT_EQ(refusal(replaced(kVerl, "{\"style\": \"rule\", \"ground_truth\": \"72\"}", "\"72\"")),
            "f.jsonl:1: reward_model: wanted an object with 'ground_truth', found \"72\"");
  EXPECT_EQ(refusal(replaced(kVerl, "\"user\"", "\"system\"")),
            "f.jsonl:1: prompt[0]: role: wanted 'user', found 'system'");
  EXPECT_EQ(refusal(replaced(kVerl, "openai/gsm8k", "lighteval/MATH")),
            "f.jsonl:1: data_source: wanted 'openai/gsm8k', whose scoring this task has, found 'lighteval/MATH'");
  EXPECT_NE(refusal(replaced(kVerl, "\"72\"", "\"7,200\"")).find("can never be scored right"), std::string::npos);
  EXPECT_NE(refusal(replaced(kVerl, "#### 72", "#### 73")).find("would not be scored right"), std::string::npos);
}

TEST(Gsm8k, RefusesTornEmptyOverlongAndBrokenLines) {
  const std::string first = fmt::format("{}\n", kOriginal);
  const std::string torn = first + std::string(kOriginal).substr(0, 40);
  EXPECT_NE(refusal(torn).find("f.jsonl:2: not valid JSON"), std::string::npos);
  EXPECT_NE(refusal(torn).find("was the file cut off?"), std::string::npos);
  EXPECT_EQ(refusal(first + "\n" + first), "f.jsonl:2: an empty line; each line is one problem");
  EXPECT_EQ(refusal(""), "f.jsonl: holds no problem; wanted one JSON object a line");
  EXPECT_NE(refusal(first + replaced(kOriginal, "many", "m\xff")).find("f.jsonl:2: not valid JSON"), std::string::npos);
  EXPECT_NE(refusal(first + std::string(100 << 20, 'x')).find("f.jsonl:2: a line of 104857600 bytes"),
            std::string::npos);
  EXPECT_NE(refusal(std::string(5000, '[')).find("nested deeper"), std::string::npos);
}

TEST(Gsm8k, RefusesWhatIsNotAReadableFile) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "train.jsonl";
  EXPECT_EQ(file_refusal(file), file.string() + ": the file does not exist");
  std::ofstream(file).close();
  EXPECT_EQ(file_refusal(file), file.string() + ": the file is empty");
  std::ofstream(file) << kOriginal;
  EXPECT_EQ(read_gsm8k(file).at(0).id, "gsm8k/train/0");
  std::filesystem::create_directory(folder.path() / "x.jsonl");
  EXPECT_NE(file_refusal(folder.path() / "x.jsonl").find("not a regular file"), std::string::npos);
  EXPECT_NE(file_refusal(folder.path() / "x.csv").find("wanted a .jsonl or .parquet file"), std::string::npos);
}

TEST(Gsm8k, ShipsAllProblems) {
  const auto train = gsm8k("train"), test = gsm8k("test");
  ASSERT_EQ(train.size(), 7473u);
  ASSERT_EQ(test.size(), 1319u);
  EXPECT_EQ(test[17].id, "gsm8k/test/17");
  for (const Problem& problem : test) {
    ASSERT_TRUE(problem.question.ends_with(kPromptSuffix)) << problem.id;
    ASSERT_EQ(reward(problem.solution, problem.answer, Scoring::kStrict), 1) << problem.id;
  }
}

TEST(Gsm8k, SaysWhereItLookedForMissingData) {
  ::setenv("FAULTLINE_DATA", "/nowhere", 1);
  try {
    (void)gsm8k("test");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("gsm8k/test.jsonl was not found in /nowhere"), std::string::npos);
  }
  ::unsetenv("FAULTLINE_DATA");
}

}  // namespace gsm8k_test
}  // namespace faultline::task
