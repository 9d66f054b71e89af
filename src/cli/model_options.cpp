#include "cli/model_options.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/output.h"
#include "lab/injection.h"
#include "model/checkpoint/checkpoint.h"
#include "numeric/apply.h"
#include "numeric/versions.h"
#include "tap/operators.h"

namespace faultline::cli {

void add_model_options(CLI::App& command, ModelOptions& options) {
  command
      .add_option("--model", options.model,
                  "default, a Hugging Face folder, a .gguf file, a checkpoint of `faultline train`, or random:SHAPE")
      ->group("Model")
      ->type_name("NAME")
      ->capture_default_str();
  offer(command.add_option("--dtype", options.dtype, "what it computes in: bf16, fp16 or fp32")
            ->group("Model")
            ->type_name("NAME")
            ->capture_default_str(),
        {"bf16", "fp16", "fp32"});
}

void add_fault_option(CLI::App& command, ModelOptions& options, const char* text) {
  command.add_option("--fault", options.faults, std::string(text) + "; WHERE is explained below")
      ->group("Faults")
      ->type_name("'KIND(…) @ WHERE'");
}

std::string where_help() {
  std::vector<std::string> families;
  for (const tap::Family& family : tap::families()) families.emplace_back(family.name);
  return "KIND: see `faultline list faults` and `faultline explain KIND`.\n"
         "WHERE is a list of KEY=VALUE with commas between them:\n"
         "  operator=NAME  a family (" +
         joined(std::vector<std::string>(families.begin(), families.begin() + 5), ", ") + ",\n                 " +
         joined(std::vector<std::string>(families.begin() + 5, families.end()), ", ") +
         "),\n"
         "                 an operator (aten::mm) or a glob (aten::*mm);\n"
         "                 `faultline census` shows what runs\n"
         "  module=NAME    instead of operator: a module (down_proj, mlp.down_proj,\n"
         "                 attention, rmsnorm, lm_head), layer_output, layer_input, or a\n"
         "                 glob of module paths (*.mlp.*_proj); `faultline census --places`\n"
         "  layer=LAYERS   15, 10-20, [1, 5-7] or all, which is the default\n"
         "  surface=NAME   what the fault changes: input, output, weight or bias (operators\n"
         "                 only) or gradient (modules only). Without it: the output of\n"
         "                 operators and of layer_output, the INPUT of other modules\n"
         "  except=[…]     modules or layers to leave out\n"
         "So 'deadzone(threshold=0.05) @ module=down_proj,layer=12' changes what down_proj\n"
         "reads, and with surface=output what it gives.\n\n";
}

void refuse_invisible(const std::vector<numeric::Rule>& rules, const ModelOptions& options) {
  lab::refuse_invisible(rules, model_dtype(options.dtype));
}

at::ScalarType model_dtype(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  if (name == "fp32") return at::kFloat;
  throw UsageError(fmt::format("--dtype: a model computes in bf16, fp16 or fp32; got '{}'", name));
}

void fetch_default_model(const std::string& model) {
  const auto given = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string python = given("FAULTLINE_FETCH_WITH");
  if (model != "default" || python.empty() || !given("FAULTLINE_MODEL").empty()) return;
  const std::string path = model::resolve_model(model).string();
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return;
  std::array<std::string, 3> words = {python, "-m", "faultline_model"};
  std::array<char*, 4> arguments = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = -1;
  int status = -1;
  const bool ran = ::posix_spawnp(&child, python.c_str(), nullptr, nullptr, arguments.data(), environ) == 0 &&
                   ::waitpid(child, &status, 0) == child && status == 0;
  if (!ran || !std::filesystem::exists(path, ignored))
    throw RuntimeFailure("the default model could not be fetched; name one that you have: --model FOLDER or FILE.gguf");
}

lab::LoadedModel open_model(const ModelOptions& options, const Globals& globals) {
  fetch_default_model(options.model);
  lab::LoadOptions load;
  load.dtype = model_dtype(options.dtype);
  load.device = open_device(globals.device);
  constexpr int64_t kTicks = 1000;
  std::optional<Progress> progress;  // begins with the first weight: what is refused before shows no bar
  int64_t done = 0;
  load.progress = [&](double share) {
    if (!progress)
      progress.emplace("loading", kTicks,
                       ProgressOptions{.unit = "‰", .quiet = globals.quiet || ::isatty(STDERR_FILENO) == 0});
    const auto now = static_cast<int64_t>(share * kTicks);
    if (now > done) progress->advance(now - done), done = now;
  };
  return lab::load_model(options.model, load);
}

std::vector<numeric::Rule> read_faults(const std::vector<std::string>& texts) {
  std::vector<numeric::Rule> rules;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    numeric::Rule rule = numeric::parse_rule(text, numeric::RuleUse::kInPlan);
    const std::string name = rule.name;
    for (int i = 2; !names.insert(rule.name).second; ++i) rule.name = fmt::format("{}_{}", name, i);
    rule.source.set("name", rule.name);
    rules.push_back(std::move(rule));
  }
  return rules;
}

namespace {

// Beside the libtorch_cpu.so that is loaded already: the two must be of one build. A ROCm build calls its GPUs cuda,
// and that half of it libtorch_hip.so.
std::string torch_cuda_path() {
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<void*>(&at::get_num_threads), &info) == 0 || info.dli_fname == nullptr) {
    return "libtorch_cuda.so";
  }
  const std::filesystem::path folder = std::filesystem::path(info.dli_fname).parent_path();
  std::error_code ignored;
  const char* half =
      std::filesystem::exists(folder / "libtorch_hip.so", ignored) ? "libtorch_hip.so" : "libtorch_cuda.so";
  return (folder / half).string();
}

// Before anything asks torch about CUDA: it looks for its CUDA half once and remembers the answer.
void load_torch_cuda() {
  const std::string path = torch_cuda_path();
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const std::string first = ::dlerror();
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  throw RuntimeFailure(
      fmt::format("--device cuda: this torch has no usable CUDA half ({}); use --device cpu or "
                  "install the CUDA build of torch",
                  first));
}

}  // namespace

c10::Device open_device(const std::string& name) {
  if (name == "cpu") return c10::Device(c10::kCPU);
  const std::string type = name.substr(0, name.find(':'));
  if (type == "npu" || type == "xpu" || type == "hpu" || type == "mtia" || type == "mps" || type == "privateuseone") {
    throw UsageError(
        fmt::format("--device {}: this program has no backend for {}; a backend of torch is loaded by importing it in "
                    "Python: python -m faultline.selftest --device {}",
                    name, type, name));
  }
  if (name != "cuda" && !name.starts_with("cuda:")) {
    throw UsageError(fmt::format("--device: wanted cpu, cuda or cuda:INDEX, got '{}'", name));
  }
  const uint64_t index = name == "cuda" ? 0 : parse_count("--device cuda:INDEX", name.substr(5), 0, 127);
  if (!numeric::has_cuda_kernels()) {
    throw RuntimeFailure(
        "--device cuda: this program was built without nvcc and has no CUDA kernels; use --device cpu");
  }
  load_torch_cuda();
  const int64_t count = at::globalContext().hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  if (count == 0) throw RuntimeFailure("--device cuda: no CUDA device was found; use --device cpu");
  if (index >= static_cast<uint64_t>(count)) {
    throw RuntimeFailure(fmt::format("--device {}: this machine has {} CUDA devices, numbered from 0", name, count));
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

std::string dtype_option(at::ScalarType type) {
  return type == at::kBFloat16 ? "bf16" : type == at::kHalf ? "fp16" : "fp32";
}

record::Maker maker_of(const Globals& globals, const lab::LoadedModel* loaded) {
  record::Maker maker{.versions = numeric::versions(), .command = globals.arguments};
  if (loaded == nullptr) return maker;
  maker.model = record::describe_model(loaded->path, dtype_option(loaded->model->options().dtype().toScalarType()));
  maker.device = loaded->model->device().str();
  return maker;
}

}  // namespace faultline::cli
