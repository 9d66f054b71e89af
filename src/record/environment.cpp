#include "record/environment.h"

#include <algorithm>
#include <array>
#include <cctype>

extern "C" char** environ;

namespace faultline::record {
namespace {

constexpr std::array<std::string_view, 4> kSecrets = {"token", "key", "secret", "password"};
constexpr std::string_view kNoSecret = "_ib_pkey";  // the number of an InfiniBand partition
// Not recorded, but handed on: LC_* and the BLAS libraries', which run on some processors only with a variable of
// theirs.
constexpr std::array<std::string_view, 6> kHandedOn = {"LC_", "NVPL_", "OPENBLAS_", "BLIS_", "ARMPL_", "DNNL_"};
constexpr std::array<std::string_view, 25> kPrefixes = {
    "NCCL_",   "RCCL_", "HCCL_",  "UCC_",     "ASCEND_", "CUDA_",        "HIP_",      "HSA_", "ROCR_",
    "NVIDIA_", "GLOO_", "TORCH_", "PYTORCH_", "OMP_",    "GOMP_",        "KMP_",      "MKL_", "UCX_",
    "FI_",     "IBV_",  "MLX5_",  "ONEDNN",   "ATEN_",   "CUBLAS_WORKS", "FAULTLINE_"};

// What any program needs to start and to find its files. LD_PRELOAD is the caller's own, as a fabric's library may need
// it; a recipe cannot set it.
constexpr std::array<std::string_view, 14> kNeeded = {
    "PATH",         "HOME",          "USER",           "LANG",        "TZ",
    "TMPDIR",       "TERM",          "XDG_CACHE_HOME", "LD_PRELOAD",  "LD_LIBRARY_PATH",
    "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS",   "LSAN_OPTIONS"};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

bool is_handed_on(std::string_view variable) {
  return !names_a_secret(variable) && std::any_of(kHandedOn.begin(), kHandedOn.end(), [&](std::string_view prefix) {
    return variable.starts_with(prefix);
  });
}

template <class Visit>
void for_each_variable(const Visit& visit) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) visit(std::string(text.substr(0, equals)), text.substr(equals + 1));
  }
}

}  // namespace

bool names_a_secret(std::string_view variable) {
  const std::string name = lower(variable);
  if (name.ends_with(kNoSecret)) return false;
  return std::any_of(kSecrets.begin(), kSecrets.end(),
                     [&](std::string_view word) { return name.find(word) != std::string::npos; });
}

bool key_names_a_secret(std::string_view key) {
  std::string word;
  const auto is_secret = [&] { return std::find(kSecrets.begin(), kSecrets.end(), word) != kSecrets.end(); };
  for (const char c : lower(key)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += c;
    } else if (is_secret()) {
      return true;
    } else {
      word.clear();
    }
  }
  return is_secret();
}

bool is_recorded_variable(std::string_view variable) {
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return variable.starts_with(prefix); });
}

std::map<std::string, std::string> inherited_environment() {
  std::map<std::string, std::string> inherited;
  for_each_variable([&](const std::string& name, std::string_view value) {
    const bool needed = std::find(kNeeded.begin(), kNeeded.end(), name) != kNeeded.end() || is_handed_on(name);
    if (needed || (is_recorded_variable(name) && !names_a_secret(name))) inherited[name] = value;
  });
  return inherited;
}

std::map<std::string, std::string> forwarded_environment() {
  std::map<std::string, std::string> forwarded;
  for_each_variable([&](const std::string& name, std::string_view value) {
    if (is_recorded_variable(name) && !names_a_secret(name) && !name.ends_with("_VISIBLE_DEVICES"))
      forwarded[name] = value;
  });
  return forwarded;
}

std::map<std::string, std::string> whole_environment() {
  std::map<std::string, std::string> whole;
  for_each_variable([&](const std::string& name, std::string_view value) { whole[name] = value; });
  return whole;
}

ChildEnvironment::ChildEnvironment(const std::map<std::string, std::string>& variables) {
  for (const auto& [name, value] : variables) words_.push_back(name + '=' + value);
  for (std::string& word : words_) pointers_.push_back(word.data());
  pointers_.push_back(nullptr);
}

Json inheritance() {
  std::vector<std::string_view> prefixes(kPrefixes.begin(), kPrefixes.end());
  prefixes.insert(prefixes.end(), kHandedOn.begin(), kHandedOn.end());
  return {{"names", kNeeded}, {"prefixes", prefixes}, {"secrets", kSecrets}, {"no_secrets", {kNoSecret}}};
}

Json recorded_environment() {
  Json recorded = Json::object();
  for_each_variable([&](const std::string& name, std::string_view value) {
    if (is_recorded_variable(name)) recorded[name] = names_a_secret(name) ? std::string(kRedacted) : std::string(value);
  });
  return recorded;
}

Json recorded_words(const std::vector<std::string>& words) {
  Json recorded = Json::array();
  bool value_of_secret = false;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const bool secret = key_names_a_secret(std::string_view(word).substr(0, equals));
    if (value_of_secret)
      recorded.push_back(kRedacted);
    else if (secret && equals != std::string::npos)
      recorded.push_back(word.substr(0, equals + 1) + kRedacted);
    else
      recorded.push_back(word);
    value_of_secret = !value_of_secret && secret && equals == std::string::npos && word.starts_with("--");
  }
  return recorded;
}

}  // namespace faultline::record
