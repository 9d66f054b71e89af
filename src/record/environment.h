// What a child process gets of our environment, and what a record says of it and of the command line. Both by
// allow-list: a child gets what any program needs to start, and the variables that can change a result; a record keeps
// the latter, and none whose name speaks of a secret keeps its value, since records are meant to be published.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace faultline::record {

constexpr const char* kRedacted = "(redacted)";

// The name of an environment variable that holds "token", "key", "secret" or "password", in any case; NCCL_IB_PKEY is a
// number and no secret.
bool names_a_secret(std::string_view variable);

// A key of a recipe or command line of which one word is such a name: `hub.api_key`, not `max_new_tokens`.
bool key_names_a_secret(std::string_view key);

// Can this variable change what a run computes? NCCL_*, CUDA_*, OMP_*, FAULTLINE_*, …
bool is_recorded_variable(std::string_view variable);

// What a trial, a rank or a worker inherits: PATH, HOME, … and the recorded variables; never one that names a secret.
std::map<std::string, std::string> inherited_environment();

// What a launcher takes to other machines: the recorded variables, but for secrets and for which GPUs are visible here.
std::map<std::string, std::string> forwarded_environment();

std::map<std::string, std::string> whole_environment();

// Variables as execve wants them. Made before the fork: a child of a process with threads must not allocate.
class ChildEnvironment {
 public:
  explicit ChildEnvironment(const std::map<std::string, std::string>& variables = inherited_environment());
  ChildEnvironment(ChildEnvironment&&) = default;
  ChildEnvironment(const ChildEnvironment&) = delete;  // a copy's pointers would be into the original
  char* const* get() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

// The lists behind inherited_environment(), for whoever starts a child on another machine: ray_executor.py.
Json inheritance();

// The recorded variables of this process.
Json recorded_environment();

// Words as typed: the value of `…token=VALUE`, `--token=VALUE` and `--token VALUE` is replaced.
Json recorded_words(const std::vector<std::string>& words);

}  // namespace faultline::record
