#include "race/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/config/config.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/text.h"

namespace faultline::race {
namespace {

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

struct BuiltIn {
  const char* name;
  Words alone;     // without hosts: this machine, or what the launcher's own allocation has
  Words on_hosts;  // empty: takes none
};

// {command} is the rank's command, word by word; {quoted} the same as one word for a shell.
const std::vector<BuiltIn>& built_ins() {
  static const std::vector<BuiltIn> table = {
      {"local", {"{command}"}, {}},
      {"ssh", {}, {"ssh", "-o", "BatchMode=yes", "{host}", "{quoted}"}},
      {"srun",
       {"srun", "--ntasks={ranks}", "--kill-on-bad-exit=0", "{command}"},
       {"srun", "--ntasks={ranks}", "--nodes={nodes}", "--ntasks-per-node={per_host}", "--nodelist={hosts}",
        "--kill-on-bad-exit=0", "{command}"}},
      {"mpirun",
       {"mpirun", "-np", "{ranks}", "{command}"},
       {"mpirun", "-np", "{ranks}", "--host", "{slots}", "{command}"}},
      {"torchrun",
       {"torchrun", "--standalone", "--no-python", "--nproc-per-node={ranks}", "{command}"},
       {"ssh", "-o", "BatchMode=yes", "{host}", "torchrun", "--no-python", "--nnodes={nodes}", "--node-rank={node}",
        "--nproc-per-node={per_host}", "--master-addr={first}", "--master-port=29400", "{quoted}"}}};
  return table;
}

const BuiltIn* built_in(const std::string& name) {
  const auto found =
      std::find_if(built_ins().begin(), built_ins().end(), [&](const BuiltIn& one) { return one.name == name; });
  return found == built_ins().end() ? nullptr : &*found;
}

std::vector<std::string> built_in_names() {
  std::vector<std::string> names;
  for (const BuiltIn& one : built_ins()) names.emplace_back(one.name);
  return names;
}

const Words& template_of(const Launch& launch) {
  if (!launch.words.empty()) return launch.words;
  const BuiltIn& own = *built_in(launch.name);
  return launch.hosts.empty() ? own.alone : own.on_hosts;
}

bool mentions(const Words& words, std::string_view hole) {
  return std::any_of(words.begin(), words.end(),
                     [&](const std::string& word) { return word.find(hole) != std::string::npos; });
}

// A host is a word of a command line, so it may not look like an option or hold anything that a shell reads.
std::string complain_host(const std::string& host) {
  const bool plain = !host.empty() && host.size() <= 255 && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("._-@:").find(static_cast<char>(c)) != std::string::npos;
  });
  return plain && host.front() != '-'
             ? ""
             : fmt::format("{} is no name of a host: letters, digits and . _ - @ :", describe_text(host));
}

void fill(std::string& word, std::string_view hole, const std::string& value) {
  for (size_t at = word.find(hole); at != std::string::npos; at = word.find(hole, at + value.size()))
    word.replace(at, hole.size(), value);
}

Words python_words(const PythonRanks& ranks) {
  const char* wish = std::getenv("FAULTLINE_PYTHON");
  const std::string named = wish == nullptr || *wish == '\0' ? "python3" : wish;
  Words words = {ranks.interpreter.empty() ? named : ranks.interpreter,
                 "-m",
                 "faultline.race",
                 "--backend",
                 ranks.backend,
                 "--device",
                 ranks.device};
  for (const std::string& module : ranks.imports) words.insert(words.end(), {"--import", module});
  return words;
}

// Where Python finds our package, and the library that this process has: of the sources and the bundle, or installed.
Variables python_variables() {
  const std::filesystem::path library = library_folder();
  for (const auto& place : {library / "python", library / ".." / "python", library / ".."}) {
    std::error_code ignored;
    if (!std::filesystem::exists(place / "faultline" / "race.py", ignored)) continue;
    const char* path = std::getenv("PYTHONPATH");
    const std::string package = std::filesystem::canonical(place).string();
    return {{"PYTHONPATH", path == nullptr || *path == '\0' ? package : package + ":" + path},
            {"FAULTLINE_LIBRARY", (library / "libfaultline.so").string()}};
  }
  throw UsageError(
      fmt::format("transport torch needs python/faultline/race.py beside {} or in the folder above", library.string()));
}

class Commands {
 public:
  Commands(const Launch& launch, const JoinOrder& order)
      : launch_(launch),
        order_(order),
        template_(template_of(launch)),
        per_host_(order.ranks / std::max<int>(1, static_cast<int>(launch.hosts.size()))) {
    if (mentions(template_, "{node}"))
      ranks_each_ = per_host_;
    else if (launch.is_local() || mentions(template_, "{host}") || mentions(template_, "{rank}"))
      ranks_each_ = 1, names_its_rank_ = true;
    else
      ranks_each_ = order.ranks;
  }

  std::vector<LaunchedCommand> all() const {
    std::vector<LaunchedCommand> commands;
    for (int first = 0; first < order_.ranks; first += ranks_each_) commands.push_back(command(first));
    return commands;
  }

 private:
  LaunchedCommand command(int first) const {
    const std::string host = launch_.host_of(first, order_.ranks);
    Variables variables = order_.variables;
    Words join = order_.python ? python_words(*order_.python) : Words{own_program().string(), "race"};
    join.insert(join.end(), {"--join", fmt::format("{}:{}", order_.address, order_.port), "--quiet"});
    if (order_.python)
      for (const auto& [name, value] : python_variables()) variables.insert_or_assign(name, value);
    if (names_its_rank_) {  // else srun, mpirun or torchrun does
      if (!host.empty()) join.insert(join.end(), {"--host", host});
      variables["RANK"] = std::to_string(first);
      variables["WORLD_SIZE"] = std::to_string(order_.ranks);
      variables["LOCAL_RANK"] = std::to_string(first % per_host_);
      variables["LOCAL_WORLD_SIZE"] = std::to_string(per_host_);
    }
    LaunchedCommand command;
    if (launch_.is_local()) {
      command.variables = variables;
    } else {  // which of our variables a launcher hands on differs, so they are part of the command
      Words words = {"env"};
      for (const auto& [name, value] : variables) words.push_back(name + "=" + value);
      join.insert(join.begin(), words.begin(), words.end());
    }
    for (int rank = first; rank < first + ranks_each_; ++rank) command.ranks.push_back(rank);
    command.words = filled(join, first, host);
    return command;
  }

  Words filled(const Words& join, int first, const std::string& host) const {
    Words quoted, slots, words;
    for (const std::string& word : join) quoted.push_back(shell_quoted(word));
    for (const std::string& one : launch_.hosts) slots.push_back(fmt::format("{}:{}", one, per_host_));
    for (std::string word : template_) {
      if (word == "{command}") {
        words.insert(words.end(), join.begin(), join.end());
        continue;
      }
      fill(word, "{host}", host);
      fill(word, "{hosts}", fmt::format("{}", fmt::join(launch_.hosts, ",")));
      fill(word, "{slots}", fmt::format("{}", fmt::join(slots, ",")));
      fill(word, "{first}", launch_.hosts.empty() ? "127.0.0.1" : launch_.hosts.front());
      fill(word, "{nodes}", std::to_string(std::max<size_t>(1, launch_.hosts.size())));
      fill(word, "{node}", std::to_string(first / per_host_));
      fill(word, "{per_host}", std::to_string(per_host_));
      fill(word, "{ranks}", std::to_string(order_.ranks));
      fill(word, "{rank}", std::to_string(first));
      fill(word, "{quoted}", fmt::format("{}", fmt::join(quoted, " ")));
      words.push_back(word);
    }
    return words;
  }

  const Launch& launch_;
  const JoinOrder& order_;
  const Words& template_;
  int per_host_, ranks_each_ = 1;
  bool names_its_rank_ = false;
};

}  // namespace

std::string Launch::host_of(int rank, int ranks) const {
  return hosts.empty() ? "" : hosts[static_cast<size_t>(rank) * hosts.size() / static_cast<size_t>(ranks)];
}

Schema launch_schema() {
  const Schema host = Schema::string({.min = 1}).check([](const Node& n) { return complain_host(n.as_string()); });
  return Schema::map()
      .field("name", Schema::choice(built_in_names()), {.default_value = Node("local"), .doc = "who starts the ranks"})
      .field("hosts", Schema::list(host), {.default_value = Node::list(), .doc = "in order; ranks come in blocks"})
      .field(
          "address", Schema::string(),
          {.default_value = Node(""), .doc = "of this machine, for the ranks; default: as seen from the first host"});
}

Launch read_launch(const Node& node) {
  Launch launch;
  launch.name = node.at("name").as_string();
  for (const Node& host : node.at("hosts").items()) launch.hosts.push_back(host.as_string());
  launch.address = node.at("address").as_string();
  if (const Node* words = node.find("words"))
    for (const Node& word : words->items()) launch.words.push_back(word.as_string());
  return launch;
}

Launch typed_launch(const std::string& launcher, const std::string& hosts, const std::string& address) {
  Launch launch;
  launch.name = launcher;
  if (launcher.find(' ') != std::string::npos) {
    std::istringstream text(launcher);
    for (std::string word; text >> word;) launch.words.push_back(word);
    launch.name = "custom";
    if (!mentions(launch.words, "{command}") && !mentions(launch.words, "{quoted}"))
      throw UsageError("--launcher: a command line of your own needs {command}, or {quoted} where a shell reads it");
  } else if (built_in(launcher) == nullptr) {
    throw UsageError(fmt::format("--launcher: wanted {}, or a command line with {{command}}; got '{}'{}",
                                 fmt::join(built_in_names(), ", "), launcher,
                                 did_you_mean(launcher, built_in_names())));
  }
  if (!hosts.empty()) launch.hosts = comma_separated(hosts);
  for (const std::string& host : launch.hosts)
    if (const std::string complaint = complain_host(host); !complaint.empty())
      throw UsageError("--hosts: " + complaint);
  launch.address = address;
  return launch;
}

void check_launch(const Launch& launch, const std::string& transport, int ranks) {
  if (!launch.is_local() && transport == "threads")
    throw UsageError(
        fmt::format("transport threads stays in one process, and launcher {} starts others; use gloo on CPUs, nccl on "
                    "GPUs, or torch",
                    launch.name));
  const auto hosts = static_cast<int>(launch.hosts.size());
  if (launch.is_local() && (hosts > 0 || !launch.address.empty()))
    throw UsageError(
        "launcher local starts its ranks on this machine; hosts and an address are for ssh, srun, mpirun "
        "and torchrun");
  if (hosts == 0 && template_of(launch).empty())
    throw UsageError(fmt::format("launcher {} needs hosts: a list of names or addresses", launch.name));
  if (hosts == 0 && mentions(template_of(launch), "{host}"))
    throw UsageError("the launcher's command line has {host}, and there are no hosts; give --hosts");
  if (hosts > 0 && ranks % hosts != 0)
    throw UsageError(
        fmt::format("{} ranks cannot be shared equally by {} hosts; use a multiple of {}", ranks, hosts, hosts));
}

Json to_json(const PythonRanks& ranks) {
  return {{"backend", ranks.backend},
          {"device", ranks.device},
          {"imports", ranks.imports},
          {"interpreter", ranks.interpreter}};
}

PythonRanks read_python_ranks(const Node& node) {
  PythonRanks ranks;
  ranks.backend = node.at("backend").as_string(), ranks.device = node.at("device").as_string();
  for (const Node& module : node.at("imports").items()) ranks.imports.push_back(module.as_string());
  ranks.interpreter = node.at("interpreter").as_string();
  return ranks;
}

void check_python_ranks(const PythonRanks& ranks) {
  const auto plain = [](const std::string& text, std::string_view besides) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [&](unsigned char c) {
      return std::isalnum(c) != 0 || besides.find(static_cast<char>(c)) != std::string_view::npos;
    });
  };
  if (ranks.backend.empty())
    throw UsageError(
        "transport torch needs a backend of torch.distributed: --backend nccl, hccl, gloo, ucc, or one that a module "
        "registers (--import MODULE)");
  if (!plain(ranks.backend, "_"))
    throw UsageError(fmt::format("--backend: {} is no name", describe_text(ranks.backend)));
  if (!plain(ranks.device, "_:"))
    throw UsageError(
        fmt::format("--device: wanted cpu, cuda, npu … or one with its number, got {}", describe_text(ranks.device)));
  for (const std::string& module : ranks.imports)
    if (!plain(module, "_.")) throw UsageError(fmt::format("--import: {} is no module", describe_text(module)));
}

Json to_json(const Launch& launch) {
  Json json = {{"name", launch.name}, {"hosts", launch.hosts}, {"address", launch.address}};
  if (!launch.words.empty()) json["words"] = launch.words;
  return json;
}

std::string describe(const Launch& launch) {
  std::string who = launch.words.empty() ? launch.name : fmt::format("'{}'", fmt::join(launch.words, " "));
  if (launch.hosts.empty()) return who;
  return fmt::format("{} on {} host{}: {}", who, launch.hosts.size(), launch.hosts.size() == 1 ? "" : "s",
                     fmt::join(launch.hosts, ", "));
}

std::vector<LaunchedCommand> launched_commands(const Launch& launch, const JoinOrder& order) {
  return Commands(launch, order).all();
}

}  // namespace faultline::race
