// A diagnosis driven by another process's own program: operators interview_* over diagnose/interview.h. A probe goes
// out as a line of JSON and its input tensor, its answer comes back as tensors.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "base/json.h"
#include "diagnose/interview.h"
#include "plugin/handles.h"
#include "site/torch_support.h"

namespace faultline::plugin {
namespace {

Handles<diagnose::Interview>& interviews() {
  static auto* all = new Handles<diagnose::Interview>("interview");
  return *all;
}

// facts: a list of {path, type, class, epsilon, weight, bias}; weight and bias are indices into `tensors`, -1: none.
int64_t op_open(const std::string& facts, at::TensorList tensors, const at::Tensor& tokens,
                const std::string& options) {
  return site::translated([&] {
    const Json list = parse_json_text(facts, "facts"), given = parse_json_text(options, "options");
    std::map<std::string, diagnose::ModuleFacts> modules;
    try {
      const auto tensor = [&](const Json& index) {
        return index.get<int64_t>() < 0 ? at::Tensor() : tensors.at(index.get<std::size_t>());
      };
      for (const Json& one : list)
        modules[one.at("path").get<std::string>()] = {one.at("type").get<std::string>(),
                                                      one.at("class").get<std::string>(), tensor(one.at("weight")),
                                                      tensor(one.at("bias")), one.at("epsilon").get<double>()};
      diagnose::InterviewOptions how;
      how.tokens = tokens, how.head_size = given.at("head_size").get<int64_t>();
      how.seed = given.at("seed").get<uint64_t>(), how.passes = given.at("passes").get<int64_t>();
      auto interview = std::make_shared<diagnose::Interview>(std::move(modules), how);
      return interviews().add(std::move(interview));
    } catch (const Json::exception& error) {
      throw UsageError(std::string("facts or options of an interview: ") + error.what());
    }
  });
}

// An empty text: the verdict is ready.
std::tuple<std::string, at::Tensor> op_next(int64_t handle) {
  return site::translated([&]() -> std::tuple<std::string, at::Tensor> {
    const std::optional<diagnose::Probe> probe = interviews().find(handle)->next();
    if (!probe) return {"", at::empty({0})};
    static const std::map<diagnose::Probe::Call, std::string> names = {{diagnose::Probe::Call::kModel, "model"},
                                                                       {diagnose::Probe::Call::kAgain, "again"},
                                                                       {diagnose::Probe::Call::kPlain, "plain"}};
    Json json = {{"call", names.at(probe->call)}, {"module", probe->module}, {"times", probe->times}};
    json["records"] = Json::array();
    for (const diagnose::Probe::Record& record : probe->records)
      json["records"].push_back({record.module, record.output ? "output" : "input"});
    return {to_json_text(json), probe->input};
  });
}

void op_answer(int64_t handle, at::TensorList tensors) {
  site::translated([&] { interviews().find(handle)->answer(tensors.vec()); });
}
void op_fail(int64_t handle, const std::string& sentence) {
  site::translated([&] { interviews().find(handle)->fail(sentence); });
}
// The verdict as JSON and as text.
std::tuple<std::string, std::string> op_close(int64_t handle) {
  return site::translated([&] {
    const diagnose::Diagnosis verdict = interviews().find(handle)->verdict();
    interviews().close(handle);
    return std::tuple(diagnose::to_json(verdict).dump(), diagnose::to_text(verdict));
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("interview_open(str facts, Tensor[] tensors, Tensor tokens, str options) -> int", op_open);
  m.def("interview_next(int interview) -> (str, Tensor)", op_next);
  m.def("interview_answer(int interview, Tensor[] tensors) -> ()", op_answer);
  m.def("interview_fail(int interview, str sentence) -> ()", op_fail);
  m.def("interview_close(int interview) -> (str, str)", op_close);
}

}  // namespace faultline::plugin
