// Faultline for C++ programs: arm a recipe, run torch operators, and hear whether the faults happened. This header and
// the namespace faultline::api are what stays as it is from version to version; nothing else of the library is
// installed.
//
//   namespace fl = faultline::api;
//   fl::Armed armed(fl::Recipe::load("noise.yaml"));
//   { fl::Module module("model.layers.3.mlp.up_proj"); y = at::linear(x, weight); }
//   fl::Proof proof = armed.judge();
//   if (!proof.holds()) throw std::runtime_error(proof.sentences());
//
// A mistake of the caller (an unknown key, a file that is not there) is an exception of a class derived from
// std::runtime_error, whose text names the place and the remedy. One plan at a time is armed in a process.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace faultline::api {

// What is to be done, read and checked: docs/recipes.md.
class Recipe {
 public:
  // overrides: "seed=3", "+faults.0.what.strength=0.1", "~aqn", as on the command line.
  static Recipe load(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});
  static Recipe parse(std::string_view text, const std::vector<std::string>& overrides = {});

 private:
  friend class Armed;
  struct Data;
  explicit Recipe(std::shared_ptr<const Data> data);
  std::shared_ptr<const Data> data_;
};

// Why a number may not be reported. Programs decide by the code (docs/tap.md#complaints), people read the sentence.
struct Complaint {
  std::string code, rule, place, sentence;
};

// What the armed plan has done so far.
struct Proof {
  std::vector<Complaint> complaints;
  std::vector<std::string> log;  // lines for people: sites, first injections
  std::string json;              // rules, rows with their ledgers, forwards, complaints

  bool holds() const { return complaints.empty(); }
  std::string sentences() const;  // of all complaints
};

// While it lives, the faults of a recipe act on what torch runs in this process.
class Armed {
 public:
  // total_steps, layers: for schedules over a run and over the depth of a model.
  explicit Armed(const Recipe& recipe, int64_t total_steps = 1, int64_t layers = 0);
  ~Armed();
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;

  void begin_step(int64_t step);  // strengths follow their schedules; from 0
  Proof judge();                  // waits for the devices; may be called again

  // A record of what has run so far, for `faultline report`: runs/NAME-TIMESTAMP-HASH. numbers: what was measured under
  // the faults, as a JSON object. It holds the proof, and what speaks against it.
  std::filesystem::path leave_record(const std::filesystem::path& root, const std::string& name,
                                     const std::string& numbers = "{}");

 private:
  struct Data;
  std::unique_ptr<Data> data_;
};

// While it lives, what this thread runs belongs to the module of that path.
class Module {
 public:
  explicit Module(std::string_view path);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
};

// While it lives, what runs is in that phase: rollout, actor_forward, ref, eval, critic, diagnose.
class PhaseScope {
 public:
  explicit PhaseScope(std::string_view phase);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  int before_;
};

// A copy of x with the fault in it: "relative_gaussian(strength=0.05)" (docs/faults.md).
at::Tensor apply(const at::Tensor& x, const std::string& fault, uint64_t seed = 0);

// An order-aware fingerprint of a tensor's bytes; equal on every device.
uint64_t digest(const at::Tensor& tensor);

struct DiagnoseOptions {
  std::string model = "default";  // a .gguf file, a folder of safetensors, or the model that comes with Faultline
  std::string method = "self";    // self, shadow, classic
  std::string prompt = "The quick brown fox jumps over the lazy dog.";
  uint64_t seed = 0;
};
struct Verdict {
  bool fault_found = false;
  std::string json;  // candidates with layer, operator and kind; what was not tested
};
// Healthy, or which layer and operator of this machine is broken, under whatever recipe is armed.
Verdict diagnose(const DiagnoseOptions& options = {});

// One self-contained HTML page from the record of a run.
std::string report_page(const std::filesystem::path& record);

}  // namespace faultline::api
