// How the ranks of a run are started as processes: on this machine by this program itself, or by a launcher, which is a
// command line with words in braces. ssh, srun, mpirun and torchrun are built in. A recipe names a launcher and hosts;
// a command line of their own is for the person at the keyboard alone.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/config/schema.h"
#include "base/json.h"

namespace faultline::race {

struct Launch {
  std::string name = "local";
  std::vector<std::string> words;  // of a launcher of the caller's own, with braces; else empty
  std::vector<std::string> hosts;  // ranks are given to them in blocks: the first N to the first host
  std::string address;             // where the ranks find this process; "": the interface that leads to the first host

  bool is_local() const { return name == "local"; }
  std::string host_of(int rank, int ranks) const;  // as planned; "" where the launcher chooses
};

// Ranks that are Python processes, over a backend of torch.distributed: transport torch. A recipe names the backend and
// the device; which modules are imported is for the person at the keyboard alone.
struct PythonRanks {
  std::string backend;               // as torch.distributed calls it: nccl, hccl, gloo, ucc, or a registered one
  std::string device = "cpu";        // cuda, npu, …: of each rank by its local rank; npu:0: the same for all
  std::vector<std::string> imports;  // modules that register the backend or the device
  std::string interpreter;           // "": what FAULTLINE_PYTHON names, else python3

  std::string device_type() const { return device.substr(0, device.find(':')); }
};
Json to_json(const PythonRanks& ranks);
PythonRanks read_python_ranks(const Node& node);    // what to_json has written
void check_python_ranks(const PythonRanks& ranks);  // UsageError: a name that is none

Schema launch_schema();                // of the recipe's key `launcher`, which cannot name a command line
Launch read_launch(const Node& node);  // of a recipe, or what to_json has written
// As typed: a built-in name, or a command line split at spaces; hosts separated by commas.
Launch typed_launch(const std::string& launcher, const std::string& hosts, const std::string& address);
void check_launch(const Launch& launch, const std::string& transport, int ranks);  // UsageError
Json to_json(const Launch& launch);
std::string describe(const Launch& launch);  // "ssh on 4 hosts: n1, n2, n3, n4"

// What the started processes have to be told.
struct JoinOrder {
  std::string address;
  uint16_t port = 0;
  int ranks = 0;
  std::map<std::string, std::string> variables;  // of the trial, and what this machine hands on
  std::optional<PythonRanks> python = {};        // else a rank is this program
};

// A process to start, and the ranks that live as long as it does.
struct LaunchedCommand {
  std::vector<std::string> words;
  std::map<std::string, std::string> variables;  // besides ours
  std::vector<int> ranks;
};
std::vector<LaunchedCommand> launched_commands(const Launch& launch, const JoinOrder& order);

}  // namespace faultline::race
