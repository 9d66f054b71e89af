// A checkpoint's files from Python: for tests that compare with other readers, and for whoever wants one tensor.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <mutex>

#include "base/json.h"
#include "model/checkpoint/checkpoint.h"
#include "site/torch_support.h"

namespace faultline {
namespace {

// The last checkpoint stays open: a test reads its tensors one by one. A file that was replaced since is opened again.
std::shared_ptr<const model::Checkpoint> opened(const std::string& model) {
  static std::mutex mutex;
  static std::string last_model;
  static std::filesystem::file_time_type last_time;
  static std::shared_ptr<const model::Checkpoint> last;
  std::error_code ignored;
  const auto time = std::filesystem::last_write_time(model::resolve_model(model), ignored);
  const std::lock_guard<std::mutex> lock(mutex);
  if (!last || last_model != model || last_time != time) {
    last = model::open_checkpoint(model);
    last_model = model;
    last_time = time;
  }
  return last;
}

at::Tensor op_read_model_tensor(const std::string& model, const std::string& name, at::ScalarType dtype) {
  return site::translated([&] { return opened(model)->read(name, dtype); });
}
std::vector<std::string> op_model_tensor_names(const std::string& model) {
  return site::translated([&] { return opened(model)->names(); });
}
std::string op_model_config(const std::string& model) {
  return site::translated([&] { return to_json_text(model::to_config_json(opened(model)->config())); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline_testing, m) {
  m.def("read_model_tensor(str model, str name, ScalarType dtype) -> Tensor", op_read_model_tensor);
  m.def("model_tensor_names(str model) -> str[]", op_model_tensor_names);
  m.def("model_config(str model) -> str", op_model_config);
}

}  // namespace faultline
