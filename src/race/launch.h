// How the ranks of a run are started as processes: on this machine by this program itself, or by a launcher, which is a
// command line with words in braces. ssh, srun, mpirun and torchrun are built in. A recipe names a launcher and hosts;
// a command line of their own is for the person at the keyboard alone.
#pragma once

#include <map>
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
};

// A process to start, and the ranks that live as long as it does.
struct LaunchedCommand {
  std::vector<std::string> words;
  std::map<std::string, std::string> variables;  // besides ours
  std::vector<int> ranks;
};
std::vector<LaunchedCommand> launched_commands(const Launch& launch, const JoinOrder& order);

}  // namespace faultline::race
