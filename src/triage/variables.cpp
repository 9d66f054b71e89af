#include "triage/variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "base/config/config.h"
#include "base/text.h"
#include "record/environment.h"

namespace faultline::triage {
namespace {

enum class Why { kLauncher, kCode, kElsewhere, kAllowed };
// How a row's text meets a name: the whole of it, its beginning, its end, or one word between underscores.
enum class Where { kWhole, kBegin, kEnd, kWord };

struct Row {
  Where where;
  std::string_view text;
  Why why;
};

// The first row that meets the name decides. Names are compared in capitals.
constexpr std::array kTable = {
    // They hold a word of the rows below and are settings.
    Row{Where::kWhole, "CUDA_MODULE_LOADING", Why::kAllowed},
    Row{Where::kWhole, "PYTORCH_CUDA_ALLOC_CONF", Why::kAllowed},
    Row{Where::kWhole, "PYTORCH_HIP_ALLOC_CONF", Why::kAllowed},
    Row{Where::kWhole, "PYTORCH_ALLOC_CONF", Why::kAllowed},
    Row{Where::kWhole, "FAULTLINE_DRILL", Why::kAllowed},
    Row{Where::kWhole, "FAULTLINE_CPU_ISA", Why::kAllowed},
    // Who a process is within its job.
    Row{Where::kWhole, "RANK", Why::kLauncher},
    Row{Where::kWhole, "LOCAL_RANK", Why::kLauncher},
    Row{Where::kWhole, "GROUP_RANK", Why::kLauncher},
    Row{Where::kWhole, "ROLE_RANK", Why::kLauncher},
    Row{Where::kWhole, "WORLD_SIZE", Why::kLauncher},
    Row{Where::kWhole, "LOCAL_WORLD_SIZE", Why::kLauncher},
    Row{Where::kWhole, "GROUP_WORLD_SIZE", Why::kLauncher},
    Row{Where::kWhole, "ROLE_WORLD_SIZE", Why::kLauncher},
    Row{Where::kBegin, "MASTER_", Why::kLauncher},
    Row{Where::kBegin, "TORCHELASTIC_", Why::kLauncher},
    Row{Where::kBegin, "SLURM_", Why::kLauncher},
    Row{Where::kBegin, "PMI_", Why::kLauncher},
    Row{Where::kBegin, "PMIX_", Why::kLauncher},
    Row{Where::kBegin, "OMPI_", Why::kLauncher},
    // Loaders, interpreters, shells, compilers, tools that start others.
    Row{Where::kBegin, "LD_", Why::kCode},
    Row{Where::kBegin, "DYLD_", Why::kCode},
    Row{Where::kBegin, "PYTHON", Why::kCode},
    Row{Where::kBegin, "PERL", Why::kCode},
    Row{Where::kBegin, "RUBY", Why::kCode},
    Row{Where::kBegin, "NODE_", Why::kCode},
    Row{Where::kBegin, "JAVA", Why::kCode},
    Row{Where::kBegin, "_JAVA", Why::kCode},
    Row{Where::kBegin, "JDK_", Why::kCode},
    Row{Where::kBegin, "BASH", Why::kCode},
    Row{Where::kBegin, "SHELL", Why::kCode},
    Row{Where::kBegin, "GIT_", Why::kCode},
    Row{Where::kBegin, "SSH_", Why::kCode},
    Row{Where::kBegin, "SUDO_", Why::kCode},
    Row{Where::kBegin, "PIP_", Why::kCode},
    Row{Where::kBegin, "UV_", Why::kCode},
    Row{Where::kBegin, "CONDA_", Why::kCode},
    Row{Where::kBegin, "GCONV_", Why::kCode},
    Row{Where::kBegin, "GLIBC_", Why::kCode},
    Row{Where::kBegin, "MALLOC_", Why::kCode},
    Row{Where::kBegin, "FAULTLINE_", Why::kCode},
    Row{Where::kWhole, "ENV", Why::kCode},
    Row{Where::kWhole, "IFS", Why::kCode},
    Row{Where::kWhole, "PS4", Why::kCode},
    Row{Where::kWhole, "CC", Why::kCode},
    Row{Where::kWhole, "CXX", Why::kCode},
    Row{Where::kEnd, "EDITOR", Why::kCode},
    Row{Where::kEnd, "PAGER", Why::kCode},
    Row{Where::kEnd, "BROWSER", Why::kCode},
    Row{Where::kEnd, "VISUAL", Why::kCode},
    Row{Where::kEnd, "OPTIONS", Why::kCode},
    Row{Where::kEnd, "FLAGS", Why::kCode},
    Row{Where::kEnd, "PRELOAD", Why::kCode},
    Row{Where::kWhole, "TORCH_TRACE", Why::kCode},
    // A name that ends so, or has such a word, says that its value is a file, a folder, a library or a command.
    Row{Where::kEnd, "PATH", Why::kCode},
    Row{Where::kEnd, "DIR", Why::kCode},
    Row{Where::kEnd, "HOME", Why::kCode},
    Row{Where::kEnd, "LIB", Why::kCode},
    Row{Where::kEnd, "FILE", Why::kCode},
    Row{Where::kWord, "PATH", Why::kCode},
    Row{Where::kWord, "DIR", Why::kCode},
    Row{Where::kWord, "DIRECTORY", Why::kCode},
    Row{Where::kWord, "HOME", Why::kCode},
    Row{Where::kWord, "LIB", Why::kCode},
    Row{Where::kWord, "LIBRARY", Why::kCode},
    Row{Where::kWord, "LIBRARIES", Why::kCode},
    Row{Where::kWord, "FILE", Why::kCode},
    Row{Where::kWord, "TOOL", Why::kCode},
    Row{Where::kWord, "TOOLS", Why::kCode},
    Row{Where::kWord, "CONF", Why::kCode},
    Row{Where::kWord, "PLUGIN", Why::kCode},
    Row{Where::kWord, "PLUGINS", Why::kCode},
    Row{Where::kWord, "MODULE", Why::kCode},
    Row{Where::kWord, "MODULES", Why::kCode},
    Row{Where::kWord, "COMMAND", Why::kCode},
    Row{Where::kWord, "MAIL", Why::kCode},
    Row{Where::kWord, "OUT", Why::kCode},
    Row{Where::kWord, "DEST", Why::kCode},
    Row{Where::kWord, "INJECTION", Why::kCode},
    Row{Where::kBegin, "CUDA_INJECTION", Why::kCode},
    // Where a program would send data, or whom it would believe.
    Row{Where::kBegin, "RAY_", Why::kElsewhere},
    Row{Where::kWord, "PROXY", Why::kElsewhere},
    Row{Where::kWord, "ENDPOINT", Why::kElsewhere},
    Row{Where::kWord, "URL", Why::kElsewhere},
    Row{Where::kWord, "URI", Why::kElsewhere},
};

bool has_word(const std::string& name, std::string_view word) {
  for (size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || name[at - 1] == '_') && (end == name.size() || name[end] == '_')) return true;
  }
  return false;
}

bool meets(const Row& row, const std::string& name) {
  switch (row.where) {
    case Where::kWhole: return name == row.text;
    case Where::kBegin: return name.starts_with(row.text);
    case Where::kEnd: return name.ends_with(row.text);
    case Where::kWord: return has_word(name, row.text);
  }
  return false;
}

Why judge(const std::string& name) {
  std::string capitals = name;
  std::transform(capitals.begin(), capitals.end(), capitals.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto row = std::find_if(kTable.begin(), kTable.end(), [&](const Row& one) { return meets(one, capitals); });
  return row == kTable.end() ? Why::kAllowed : row->why;
}

bool is_name(const std::string& name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

// A number, a word, a list of them: nothing that names a file elsewhere, an option or a command with arguments.
bool is_plain_setting(const std::string& value) {
  return value.size() <= 256 && !value.starts_with('-') && std::all_of(value.begin(), value.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || std::string_view("_.:,;=+-%").find(static_cast<char>(c)) != std::string::npos;
         });
}

}  // namespace

bool is_launcher_variable(const std::string& name) { return judge(name) == Why::kLauncher; }

std::string complain_variable(const std::string& name, const std::string& value) {
  if (!is_name(name)) return fmt::format("{} is no name of an environment variable", describe_text(name));
  if (record::names_a_secret(name))
    return fmt::format("{} looks like a secret, and recipes are published; set it in the shell", name);
  if (value.find('\0') != std::string::npos) return fmt::format("{} holds a zero byte", name);
  const Why why = judge(name);
  if (why == Why::kLauncher) return fmt::format("{} belongs to the launcher and cannot be overridden; remove it", name);
  if (why == Why::kElsewhere)
    return fmt::format("{} would let the recipe choose a machine to talk to; set it in the shell", name);
  const bool no_plugin = name.ends_with("_PLUGIN") && value == "none";
  if ((why == Why::kCode && !no_plugin) || value.find('/') != std::string::npos)
    return fmt::format(
        "{} would load code or write files that the recipe names, and a recipe is data: it must not choose code; set "
        "it "
        "in the shell{}",
        name, name.starts_with("FAULTLINE_") ? " (of ours a recipe may set FAULTLINE_DRILL, FAULTLINE_CPU_ISA)" : "");
  if (!record::is_recorded_variable(name) && !is_plain_setting(value))
    return fmt::format(
        "{}: the value {} is no plain setting (letters, digits and _ . : , ; = + - %); set it in the shell", name,
        describe_text(value));
  return "";
}

}  // namespace faultline::triage
