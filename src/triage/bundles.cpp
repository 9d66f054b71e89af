#include "triage/bundles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "record/environment.h"

extern "C" char** environ;

namespace faultline::triage {
namespace {

constexpr std::array kLauncherVariables = {"RANK",        "LOCAL_RANK",  "GROUP_RANK",
                                           "ROLE_RANK",   "WORLD_SIZE",  "LOCAL_WORLD_SIZE",
                                           "MASTER_ADDR", "MASTER_PORT", "LD_LIBRARY_PATH"};
// Of FAULTLINE_*, what changes how a trial computes; the others name libraries, programs, folders.
constexpr std::array<std::string_view, 2> kOwnSettings = {"FAULTLINE_DRILL", "FAULTLINE_CPU_ISA"};
constexpr std::array<std::string_view, 19> kFileWords = {
    "PATH", "DIR",    "DIRECTORY", "HOME",   "LIB",     "LIBRARY", "LIBRARIES", "FILE", "TOOL", "TOOLS",
    "CONF", "PLUGIN", "PLUGINS",   "MODULE", "MODULES", "COMMAND", "MAIL",      "OUT",  "DEST"};
// They hold such a word and are settings.
constexpr std::array<std::string_view, 4> kHarmless = {"CUDA_MODULE_LOADING", "PYTORCH_CUDA_ALLOC_CONF",
                                                       "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};
constexpr std::array kLauncherPrefixes = {"TORCHELASTIC_", "SLURM_", "PMI_", "PMIX_", "OMPI_"};

std::vector<Bundle> built_in_mitigations() {
  return {
      {"none", "nothing is changed: the baseline", {}, ""},
      {"gdr-flush",
       "flush GPU-direct writes before they are read",
       {{"NCCL_GDR_FLUSH_DISABLE", "0"}, {"RCCL_GDR_FLUSH_GPU_MEM_NO_RELAXED_ORDERING", "0"}},
       "GDR_FLUSH"},
      {"strict-pcie-ordering",
       "no relaxed ordering on PCIe",
       {{"NCCL_IB_PCI_RELAXED_ORDERING", "0"}},
       "NCCL_IB_PCI_RELAXED_ORDERING"},
      {"ll-protocol", "low-latency protocol: a flag with every word", {{"NCCL_PROTO", "LL"}}, "NCCL_PROTO"},
      {"simple-protocol", "the protocol without flags", {{"NCCL_PROTO", "Simple"}}, "NCCL_PROTO"},
      {"no-gpu-direct", "the network does not touch GPU memory", {{"NCCL_NET_GDR_LEVEL", "LOC"}}, "NCCL_NET_GDR_LEVEL"},
      {"no-p2p", "GPUs do not read each other's memory", {{"NCCL_P2P_DISABLE", "1"}}, "NCCL_P2P_DISABLE"},
      {"no-shared-memory", "no host shared memory between GPUs", {{"NCCL_SHM_DISABLE", "1"}}, "NCCL_SHM_DISABLE"},
      {"sockets-only", "TCP in place of InfiniBand", {{"NCCL_IB_DISABLE", "1"}}, "NCCL_IB_DISABLE"},
      {"one-hardware-queue", "kernels of all streams in one queue", {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}, ""},
      {"blocking-launches", "each kernel ends before the next starts", {{"CUDA_LAUNCH_BLOCKING", "1"}}, ""},
      {"no-drill",
       "planted faults are left out: shows what a mitigation that works looks like",
       {{"FAULTLINE_DRILL", "off"}},
       "FAULTLINE_DRILL=off"},
  };
}

std::vector<Bundle> built_in_environments() {
  return {
      {"default", "as the caller's", {}, ""},
      {"nccl-log", "NCCL says what it uses", {{"NCCL_DEBUG", "INFO"}}, ""},
      {"one-thread", "one CPU thread a process", {{"OMP_NUM_THREADS", "1"}}, ""},
      {"portable-kernels", "our CPU kernels as plain C++", {{"FAULTLINE_CPU_ISA", "portable"}}, ""},
  };
}

std::string complain_name(const std::string& name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0 ||
      !std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }))
    return fmt::format("{} is no name of an environment variable", describe_text(name));
  if (is_launcher_variable(name))
    return fmt::format("{} belongs to the launcher and cannot be overridden; remove it", name);
  if (!is_cell_variable(name))
    return fmt::format(
        "{} is none of the variables a recipe may set (NCCL_*, RCCL_*, CUDA_*, HIP_*, UCX_*, OMP_*, FAULTLINE_*, …); "
        "a recipe is data and must not choose code; set it in the shell",
        name);
  if (names_a_secret(name))
    return fmt::format("{} looks like a secret, and recipes are published; set it in the shell", name);
  if (name.starts_with("FAULTLINE_") && std::find(kOwnSettings.begin(), kOwnSettings.end(), name) == kOwnSettings.end())
    return fmt::format("{} is none of the settings of ours that a recipe may choose ({}); set it in the shell", name,
                       fmt::join(kOwnSettings, ", "));
  return "";
}

// Does one word of the name say that the runtime takes the value for a file, a library or a command?
bool speaks_of_files_or_code(const std::string& name) {
  if (name.find("INJECTION") != std::string::npos) return true;
  std::string word;
  for (const char c : name + '_') {
    if (c != '_') {
      word += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      continue;
    }
    if (std::find(kFileWords.begin(), kFileWords.end(), word) != kFileWords.end()) return true;
    word.clear();
  }
  return false;
}

// A library that the runtime would load is code, and a log that it would write is a file outside the output folder.
// There are too many such variables, and new ones with every version, to list them; their names give them away.
std::string complain_value(const std::string& name, const std::string& value) {
  if (value.find('\0') != std::string::npos) return fmt::format("{} holds a zero byte", name);
  const bool harmless = std::find(kHarmless.begin(), kHarmless.end(), name) != kHarmless.end() ||
                        (name.ends_with("_PLUGIN") && value == "none");
  if (value.find('/') != std::string::npos || (speaks_of_files_or_code(name) && !harmless))
    return fmt::format("{} would load code or write files that the recipe names; set it in the shell", name);
  return "";
}

std::string check_variables(const Node& map) {
  for (const Node::Entry& entry : map.entries()) {
    if (const std::string complaint = complain_name(entry.key); !complaint.empty()) return complaint;
    if (const std::string complaint = complain_value(entry.key, entry.value.as_string()); !complaint.empty())
      return complaint;
  }
  return "";
}

const Bundle& find_bundle(const std::vector<Bundle>& bundles, const Node& name, const char* what, const char* command) {
  std::vector<std::string> names;
  for (const Bundle& bundle : bundles) {
    if (bundle.name == name.as_string()) return bundle;
    names.push_back(bundle.name);
  }
  throw name.error(fmt::format("no {} is called '{}'{}; see `faultline triage {}`", what, name.as_string(),
                               did_you_mean(name.as_string(), names), command));
}

}  // namespace

bool is_launcher_variable(const std::string& name) {
  return std::find(kLauncherVariables.begin(), kLauncherVariables.end(), name) != kLauncherVariables.end() ||
         std::any_of(kLauncherPrefixes.begin(), kLauncherPrefixes.end(),
                     [&](const char* prefix) { return name.starts_with(prefix); });
}

bool is_cell_variable(const std::string& name) { return is_recorded_variable(name); }

bool is_safe_name(const std::string& name) {
  return !name.empty() && name.size() <= 80 && name.front() != '.' && name.front() != '-' && name.back() != '.' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
}

Catalogue::Catalogue() : mitigations_(built_in_mitigations()), environments_(built_in_environments()) {}

void Catalogue::add(const Node& definitions, bool mitigations) {
  std::vector<Bundle>& bundles = mitigations ? mitigations_ : environments_;
  for (const Node::Entry& entry : definitions.entries()) {
    if (std::any_of(bundles.begin(), bundles.end(), [&](const Bundle& b) { return b.name == entry.key; }))
      throw entry.value.error(fmt::format("'{}' is defined already; choose another name", entry.key));
    bundles.push_back({entry.key, entry.value.at("description").as_string(), read_environment(entry.value.at("env")),
                       entry.value.at("require_log").as_string()});
  }
}

const Bundle& Catalogue::mitigation(const Node& name) const {
  return find_bundle(mitigations_, name, "mitigation", "list-mitigations");
}
const Bundle& Catalogue::environment(const Node& name) const {
  return find_bundle(environments_, name, "environment", "list-environments");
}

Schema environment_schema() {
  return Schema::map()
      .extra(Schema::string())
      .check(check_variables)
      .described_as("a map of environment variables to texts (quote numbers)");
}

Schema bundles_schema() {
  const Schema bundle = Schema::map()
                            .field("description", Schema::string(), {.default_value = Node("")})
                            .field("env", environment_schema(), {.required = true, .doc = "variables it sets"})
                            .field("require_log", Schema::string(),
                                   {.default_value = Node(""), .doc = "a text that a trial's log must hold"});
  return Schema::map().extra(bundle).check([](const Node& map) -> std::string {
    for (const Node::Entry& entry : map.entries())
      if (!is_safe_name(entry.key))
        return fmt::format("{} is no safe name: letters, digits, '_', '-', inner dots", describe_text(entry.key));
    return "";
  });
}

Environment read_environment(const Node& node) {
  Environment environment;
  for (const Node::Entry& entry : node.entries()) environment[entry.key] = entry.value.as_string();
  return environment;
}

Environment merge_bundles(const std::string& cell, const std::vector<Bundle>& bundles) {
  std::map<std::string, const Bundle*> owner;
  Environment merged;
  for (const Bundle& bundle : bundles) {
    for (const auto& [key, value] : bundle.variables) {
      const auto [place, fresh] = merged.try_emplace(key, value);
      if (!fresh && place->second != value)
        throw UsageError(fmt::format("cell '{}': {} is '{}' in '{}' and '{}' in '{}'; a cell can test only one of them",
                                     cell, key, place->second, owner[key]->name, value, bundle.name));
      owner[key] = &bundle;
    }
  }
  return merged;
}

Environment ambient_environment() {
  Environment ambient;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) ambient[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return ambient;
}

std::string no_op_reason(const Bundle& bundle, const Environment& ambient) {
  if (bundle.variables.empty()) return "";
  for (const auto& [key, value] : bundle.variables) {
    const auto found = ambient.find(key);
    if (found == ambient.end() || found->second != value) return "";
  }
  return fmt::format("{} repeats what the environment has already", bundle.name);
}

}  // namespace faultline::triage
