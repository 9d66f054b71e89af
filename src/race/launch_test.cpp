#include "race/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/config/config.h"
#include "base/error.h"

namespace faultline::race {
namespace launch_test {

using Strings = std::vector<std::string>;

Launch on_hosts(const std::string& name, const std::string& hosts = "n1,n2") { return typed_launch(name, hosts, ""); }

// The commands as one would type them, with a short name for this program.
Strings typed(const Launch& launch, int ranks) {
  Strings lines;
  for (const LaunchedCommand& command :
       launched_commands(launch, {"10.0.0.9", 4000, ranks, {{"NCCL_PROTO", "LL 128"}}})) {
    std::string line = fmt::format("{}", fmt::join(command.words, " "));
    const size_t end = line.find(" race --join");
    const size_t begin = line.rfind(' ', end - 1) + 1;
    lines.push_back(line.replace(begin, end - begin, "FAULTLINE"));
  }
  return lines;
}

TEST(Launch, SshStartsEveryRankOnItsHost) {
  const Strings lines = typed(on_hosts("ssh"), 4);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(
      lines[3],
      "ssh -o BatchMode=yes n2 env LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 'NCCL_PROTO=LL 128' RANK=3 WORLD_SIZE=4 FAULTLINE "
      "race --join 10.0.0.9:4000 --quiet --host n2");
  EXPECT_EQ(launched_commands(on_hosts("ssh"), {"10.0.0.9", 4000, 4, {}})[3].words.size(), 5u)
      << "one word for the shell there";
}

TEST(Launch, SlurmAndMpiStartAllRanksAtOnce) {
  EXPECT_EQ(
      typed(on_hosts("srun"), 4),
      Strings{"srun --ntasks=4 --nodes=2 --ntasks-per-node=2 --nodelist=n1,n2 --kill-on-bad-exit=0 env NCCL_PROTO=LL "
              "128 FAULTLINE race --join 10.0.0.9:4000 --quiet"});
  EXPECT_EQ(
      typed(on_hosts("srun", ""), 4),
      Strings{
          "srun --ntasks=4 --kill-on-bad-exit=0 env NCCL_PROTO=LL 128 FAULTLINE race --join 10.0.0.9:4000 --quiet"});
  EXPECT_EQ(typed(on_hosts("mpirun"), 4),
            Strings{"mpirun -np 4 --host n1:2,n2:2 env NCCL_PROTO=LL 128 FAULTLINE race --join 10.0.0.9:4000 --quiet"});
}

TEST(Launch, TorchrunIsStartedOnceOnEveryHost) {
  const Strings lines = typed(on_hosts("torchrun"), 4);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1],
            "ssh -o BatchMode=yes n2 torchrun --no-python --nnodes=2 --node-rank=1 --nproc-per-node=2 --master-addr=n1 "
            "--master-port=29400 env 'NCCL_PROTO=LL 128' FAULTLINE race --join 10.0.0.9:4000 --quiet");
  EXPECT_EQ(launched_commands(on_hosts("torchrun"), {"10.0.0.9", 4000, 4, {}})[1].ranks, (std::vector<int>{2, 3}));
  EXPECT_EQ(typed(on_hosts("torchrun", ""), 4).size(), 1u);
}

TEST(Launch, AnOwnCommandLineGetsWhatItsBracesAskFor) {
  EXPECT_EQ(typed(typed_launch("enter {host} --of {hosts} {rank}/{ranks} -- {command}", "a,b", ""), 2)[1],
            "enter b --of a,b 1/2 -- env LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 NCCL_PROTO=LL 128 RANK=1 WORLD_SIZE=2 "
            "FAULTLINE race "
            "--join 10.0.0.9:4000 --quiet --host b");
}

TEST(Launch, OnThisMachineVariablesAreNoWords) {
  const auto commands = launched_commands({}, {"127.0.0.1", 4000, 2, {{"A", "1"}}});
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[1].words.size(), 5u);
  EXPECT_EQ(commands[1].variables.at("RANK"), "1");
  EXPECT_EQ(commands[1].variables.at("A"), "1");
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, RefusesWhatCannotBeMeant) {
  const auto typed_and_checked = [](const std::string& launcher, const std::string& hosts, int ranks) {
    return refusal([&] { check_launch(typed_launch(launcher, hosts, ""), "gloo", ranks); });
  };
  EXPECT_EQ(typed_and_checked("ssh", "n1,n2", 4), "");
  EXPECT_NE(typed_and_checked("shh", "", 4).find("did you mean 'ssh'?"), std::string::npos);
  EXPECT_NE(typed_and_checked("ssh", "", 4).find("needs hosts"), std::string::npos);
  EXPECT_NE(typed_and_checked("local", "n1", 4).find("this machine"), std::string::npos);
  EXPECT_NE(typed_and_checked("ssh", "n1,n2,n3", 4).find("use a multiple of 3"), std::string::npos);
  EXPECT_NE(typed_and_checked("run {host}", "n1", 4).find("needs {command}"), std::string::npos);
  EXPECT_NE(typed_and_checked("run {host} {command}", "", 4).find("give --hosts"), std::string::npos);
  for (const char* host : {"-oProxyCommand=x", "a b", "a;b", "$(x)", ""})
    EXPECT_NE(typed_and_checked("ssh", std::string("n1,") + host, 4), "") << host;
}

TEST(Launch, ARankOfPythonsIsStartedWithItsBackendAndFindsOurPackage) {
  const PythonRanks python{"hccl", "npu", {"torch_npu", "other.part"}, "/opt/python"};
  const JoinOrder order{"10.0.0.9", 4000, 2, {{"PYTHONPATH", "of the cell"}}, python};
  for (const LaunchedCommand& command : launched_commands(Launch{}, order)) {
    EXPECT_EQ(fmt::format("{}", fmt::join(command.words, " ")),
              "/opt/python -m faultline.race --backend hccl --device npu --import torch_npu --import other.part --join "
              "10.0.0.9:4000 --quiet");
    const std::string path = command.variables.at("PYTHONPATH");
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(path.substr(0, path.find(':'))) / "faultline/race.py"));
    EXPECT_TRUE(std::filesystem::exists(command.variables.at("FAULTLINE_LIBRARY")));
  }
  const PythonRanks again = read_python_ranks(from_json(to_json(python)));
  EXPECT_EQ(to_json(again), to_json(python)) << "a trial gets what was typed";
}

TEST(Launch, ARecipeNamesNoCommandLine) {
  const auto read = [](const std::string& text) {
    return refusal([&] { (void)read_launch(validate(parse_json(text, "r"), launch_schema())); });
  };
  EXPECT_EQ(read(R"({"name": "ssh", "hosts": ["n1", "u@10.0.0.2"]})"), "");
  EXPECT_NE(read(R"({"name": "sh -c {command}"})"), "");
  EXPECT_NE(read(R"({"name": "ssh", "words": ["sh"]})"), "");
  EXPECT_NE(read(R"({"name": "ssh", "hosts": ["-oProxyCommand=x"]})"), "");
  const Launch own = typed_launch("enter {host} {command}", "n1", "10.0.0.1");
  EXPECT_EQ(to_json(read_launch(from_json(to_json(own)))), to_json(own)) << "a trial gets what was typed";
}

}  // namespace launch_test
}  // namespace faultline::race
