// Tasks and rewards for Python: torch.ops.faultline.{task_problems, task_file, reward, extract_answer}. Problems come
// as JSON, because operators know no records.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "base/error.h"
#include "base/json.h"
#include "task/task.h"

namespace faultline {
namespace {

// As numeric/translated.h, which stands above this module: a user's mistake becomes Python's ValueError.
template <class Function>
auto with_value_errors(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const UsageError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

std::string to_json(const std::vector<task::Problem>& problems) {
  auto json = Json::array();
  for (const task::Problem& problem : problems)
    json.push_back({{"question", problem.question},
                    {"answer", problem.answer},
                    {"solution", problem.solution},
                    {"id", problem.id}});
  return json.dump();
}

std::string op_task_problems(const std::string& name, const std::string& split, int64_t count, int64_t seed,
                             int64_t difficulty) {
  return with_value_errors([&] {
    task::TaskSpec spec{.name = task::task_info(name).name, .arithmetic = {static_cast<uint64_t>(seed), difficulty}};
    if (spec.name == "arithmetic") return to_json(task::arithmetic(split, count, spec.arithmetic));
    std::vector<task::Problem> problems =
        spec.name == "addition" ? task::addition(split, spec.arithmetic.seed) : task::gsm8k(split);
    if (count >= 0 && static_cast<size_t>(count) < problems.size()) problems.resize(static_cast<size_t>(count));
    return to_json(problems);
  });
}

std::string op_task_file(const std::string& file) {
  return with_value_errors([&] { return to_json(task::read_gsm8k(file)); });
}

double op_reward(const std::string& response, const std::string& answer, const std::string& scoring) {
  return with_value_errors([&] { return task::reward(response, answer, task::scoring_by_name(scoring)); });
}

std::string op_extract_answer(const std::string& response, const std::string& scoring) {
  return with_value_errors([&] { return task::extract_answer(response, task::scoring_by_name(scoring)); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline_testing, m) {
  m.def("task_problems(str name, str split, int count, int seed, int difficulty) -> str", op_task_problems);
  m.def("task_file(str file) -> str", op_task_file);
  m.def("reward(str response, str answer, str scoring) -> float", op_reward);
  m.def("extract_answer(str response, str scoring) -> str", op_extract_answer);
}

}  // namespace faultline
