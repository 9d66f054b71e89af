// What `python -m faultline.race` needs: torch.ops.faultline.race_{run,join,order,buffers,keys}. A run in Python is
// this library's own, from the configuration to the record; Python makes the process group and calls its collectives.
#include <ATen/ATen.h>
#include <c10/core/DeviceType.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <csignal>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/progress.h"
#include "cluster/membership.h"
#include "numeric/versions.h"
#include "race/asked.h"
#include "race/checks.h"
#include "race/foreign_group.h"
#include "site/torch_support.h"

namespace faultline::race {
namespace {

std::atomic<bool> interrupted{false};

// While it lives a signal is ours: Python's own handler would only act once the run is over.
class OwnSignal {
 public:
  OwnSignal(int number, void (*handler)(int)) : number_(number), before_(std::signal(number, handler)) {}
  OwnSignal(const OwnSignal&) = delete;
  OwnSignal& operator=(const OwnSignal&) = delete;
  ~OwnSignal() { (void)std::signal(number_, before_); }

 private:
  int number_;
  void (*before_)(int);
};
void on_interrupt(int) { interrupted = true; }

DataGroup python_group(int64_t call) {
  return [call](const DataGroupOrder& order) {
    const cluster::Membership& m = order.membership;
    const Json json = {{"address", m.address},
                       {"port", m.port},
                       {"prefix", fmt::format("faultline/{}/python", m.generation)},
                       {"rank", m.rank},
                       {"ranks", m.ranks},
                       {"device", order.device.str()},
                       {"on_loopback", m.on_loopback()},
                       {"timeout_seconds", order.timeout_seconds}};
    return make_foreign_group(reinterpret_cast<ForeignCall>(call), to_json_text(json), m.rank, m.ranks,
                              order.heartbeat);
  };
}

at::Device named_device(const std::string& name) {
  try {
    return at::Device(name);
  } catch (const c10::Error&) {
    throw UsageError(
        fmt::format("--device: this torch has no device '{}'; a backend is loaded by --import MODULE", name));
  }
}

Asked read_asked(const Json& json, int64_t call) {
  Asked asked;
  asked.transport = "torch";
  asked.recipe = json.at("recipe"), asked.out = json.at("out"), asked.write_golden = json.at("write_golden");
  asked.overrides = json.at("overrides").get<std::vector<std::string>>();
  asked.seed = json.at("seed").get<uint64_t>();
  asked.overhead = json.at("measure_overhead");
  asked.run.ranks = json.at("ranks");
  asked.run.launch = typed_launch(json.at("launcher"), json.at("hosts"), json.at("address"));
  asked.run.python = PythonRanks{json.at("backend"), json.at("device"), json.at("imports"), json.at("interpreter")};
  check_python_ranks(*asked.run.python);
  asked.run.device = named_device(asked.run.python->device);
  asked.run.data_group = python_group(call);
  asked.run.interrupted = &interrupted;
  return asked;
}

// -> JSON: exit_code, silent (another rank speaks for all), the result and its lines
std::string run_in_python(const std::string& request, int64_t call) {
  return site::translated([&] {
    const Json json = parse_json_text(request, "the request");
    const Asked asked = read_asked(json, call);
    Ready ready = prepare(asked);
    const char* rank = std::getenv("RANK");
    const bool quiet = json.at("quiet") || (rank != nullptr && std::string_view(rank) != "0");
    std::vector<std::string> lines;
    if (ready.drill_left_out) lines.emplace_back("FAULTLINE_DRILL=off: planted faults are left out");
    Progress progress("race", ready.config.verify_iterations, {.unit = "iteration", .quiet = quiet});
    ready.run.progress = [&, before = int64_t{0}](int64_t done, int64_t) mutable {
      progress.advance(done - std::exchange(before, done));
    };
    const OwnSignal interruption(SIGINT, on_interrupt);
    const record::Maker maker{.versions = numeric::versions(), .command = json.at("command")};
    const RunResult result = carry_out(asked, ready, maker);
    for (std::string& line : log_lines(result)) lines.push_back(std::move(line));
    Json said = to_json(result, ready.config);
    if (asked.overhead && !result.silent) {
      const Overhead overhead = digest_overhead(result);
      said["overhead"] = to_json(overhead);
      lines.push_back(describe(overhead));
    }
    return to_json_text({{"exit_code", static_cast<int>(exit_code(result))},
                         {"silent", result.silent},
                         {"lines", lines},
                         {"result", said}});
  });
}

// A rank that a launcher of ours has started. -> its exit code
int64_t join_in_python(const std::string& place, const std::string& host, const std::string& device, int64_t call) {
  return site::translated([&] {
    const OwnSignal interruption(SIGINT, on_interrupt), termination(SIGTERM, SIG_IGN);
    RunOptions run;
    run.interrupted = &interrupted;
    run.data_group = python_group(call);
    const RunResult result = join_launched(place, host, run, [&](const std::string&) { return named_device(device); });
    return static_cast<int64_t>(exit_code(result));
  });
}

std::string describe_run(const std::string& request) {
  return site::translated([&] {
    const Json json = parse_json_text(request, "the request");
    const Ready ready = prepare(read_asked(json, 0));
    const auto membership = cluster::membership_from_environment();
    return describe(ready.config, membership ? membership->ranks : ready.run.ranks);
  });
}

std::tuple<at::Tensor, at::Tensor> buffers() {
  FL_ASSERT(foreign_mail().output.defined());  // asked outside of a collective
  return {foreign_mail().output, foreign_mail().input};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("race_run(str request, int call) -> str", run_in_python);
  m.def("race_describe(str request) -> str", describe_run);
  m.def("race_join(str place, str host, str device, int call) -> int", join_in_python);
  m.def("race_order() -> str", [] { return foreign_mail().order; });
  m.def("race_buffers() -> (Tensor output, Tensor input)", buffers);
  m.def("race_keys() -> str", keys_text);
}

}  // namespace faultline::race
