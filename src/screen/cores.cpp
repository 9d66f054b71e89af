#include "screen/cores.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <memory>
#include <thread>

#include "base/machine.h"
#include "base/text.h"
#include "model/build.h"
#include "screen/machine.h"
#include "screen/program.h"
#include "screen/record.h"

namespace faultline::screen {
namespace {

constexpr double kLeastSeconds = 0.5;  // of a core by itself

// How long each part of a CPU's screen takes.
struct Times {
  double alone = 0, together = 0, narrower = 0;  // of one core; of all; of one instruction set
};

Times times_of(const ScreenOptions& options, std::size_t cores, std::size_t sets) {
  if (!options.instruction_set.empty()) return {0, options.seconds, 0};
  Times times;
  times.narrower = sets == 0 ? 0 : 0.3 * options.seconds / static_cast<double>(sets);
  times.alone = 0.35 * options.seconds / static_cast<double>(cores);
  if (times.alone < kLeastSeconds) times.alone = 0;
  times.together =
      options.seconds - times.narrower * static_cast<double>(sets) - times.alone * static_cast<double>(cores);
  return times;
}

template <class Function>
auto on_core(int core, Function&& function) {
  decltype(function()) result;
  std::thread thread([&] {
    pin_to(core);
    at::set_num_threads(1);
    result = function();
  });
  thread.join();
  return result;
}

struct Core {
  int number = 0;
  WorkList list;
};

WorkerOptions worker_options(const ScreenOptions& options, const std::vector<int>& cores, int core, double seconds) {
  WorkerOptions worker;
  worker.seconds = seconds, worker.seed = mix64(options.seed, static_cast<uint64_t>(core));
  worker.batch_seconds = 0.05, worker.batch_bytes = int64_t{64} << 20;
  worker.rates = options.rates, worker.stop = options.stop, worker.between = options.between;
  worker.elsewhere = [cores, core](const Check& check, const Launched& wrong,
                                   std::string& where) -> std::optional<Tries> {
    const auto other = std::find_if(cores.begin(), cores.end(), [core](int one) { return one != core; });
    if (other == cores.end()) return std::nullopt;
    where = fmt::format("core {}", *other);
    return on_core(*other, [&] { return try_again(const_cast<Check&>(check), wrong, 8); });
  };
  return worker;
}

// What a child inherits, held to an instruction set: oneDNN, ATen's own kernels, MKL and ours, each by its own
// variable.
record::ChildEnvironment environment_for(const std::string& set) {
  struct Words {
    const char *name, *onednn, *aten, *mkl, *ours;
  };
  constexpr std::array kAll = {Words{"portable", "SSE41", "default", "SSE4_2", "portable"},
                               Words{"avx2", "AVX2", "avx2", "AVX2", "avx2"},
                               Words{"avx512", "AVX512_CORE", "avx512", "AVX512", "avx512"}};
  auto variables = record::inherited_environment();
  for (const Words& words : kAll) {
    if (set != words.name) continue;
    variables["ONEDNN_MAX_CPU_ISA"] = words.onednn, variables["ATEN_CPU_CAPABILITY"] = words.aten;
    variables["MKL_ENABLE_INSTRUCTIONS"] = words.mkl, variables["FAULTLINE_CPU_ISA"] = words.ours;
  }
  return record::ChildEnvironment(variables);
}

// The record of a screen in a process that is held to an instruction set; a sentence where there is none.
Json screen_held_to(const std::string& set, const ScreenOptions& options, double seconds, std::string& why) {
  std::vector<std::string> words = {options.program.string(), "screen", "--device", "cpu", "--instruction-set", set};
  for (std::string word :
       {std::string("--seconds"), fmt::format("{}", seconds), std::string("--load"),
        std::string(load_name(options.load)), std::string("--seed"), std::to_string(options.seed),
        std::string("--memory-share"), std::string("0"), std::string("--json"), std::string("--quiet")})
    words.push_back(std::move(word));
  std::string text;
  const std::optional<int> status = run_program(std::move(words), environment_for(set), text);
  if (!status) {
    why = "no process could be started";
    return {};
  }
  try {
    const Json fleet = parse_json_text(text, set);
    return fleet.at("devices").at(0);
  } catch (const std::exception&) {
    why = fmt::format("its process ended with status {} and no record", *status);
    return {};
  }
}

}  // namespace

std::vector<std::string> narrower_instruction_sets() {
  switch (instruction_set()) {
    case InstructionSet::kAmx:
    case InstructionSet::kAvx512Bf16: return {"avx512", "avx2", "portable"};
    case InstructionSet::kAvx512: return {"avx2", "portable"};
    case InstructionSet::kAvx2: return {"portable"};
    default: return {};
  }
}

void screen_cores(Json& record, const ScreenOptions& options) {
  const std::vector<int> cores = allowed_cores();
  const std::vector<std::string> sets = options.program.empty() || !options.instruction_set.empty()
                                            ? std::vector<std::string>{}
                                            : narrower_instruction_sets();
  const Times times = times_of(options, cores.size(), sets.size());
  const int threads = at::get_num_threads();
  const double share = options.memory_share < 0 ? 0.05 : options.memory_share;
  record["memory_share"] = share;
  WorkSpec spec{.load = options.load, .seed = options.seed};
  spec.memory_bytes =
      static_cast<int64_t>(share * static_cast<double>(model::available_memory()) / static_cast<double>(cores.size()));
  std::vector<Core> all(cores.size());
  for (std::size_t i = 0; i < cores.size(); ++i) all[i].number = cores[i];
  std::vector<Part> parts;
  // Inputs and answers of each core are made by the core itself, all at once.
  if (options.begins) options.begins("cpu: inputs and answers", 0);
  const auto every_core = [&](const std::function<void(std::size_t)>& work) {
    std::vector<std::thread> running;
    for (std::size_t i = 0; i < all.size(); ++i)
      running.emplace_back([&, i] {
        pin_to(all[i].number);
        at::set_num_threads(1);
        work(i);
      });
    for (std::thread& thread : running) thread.join();
  };
  std::vector<std::string> trouble(all.size());
  every_core([&](std::size_t i) {
    try {
      all[i].list = work_list(spec);
    } catch (const std::exception& error) {
      trouble[i] = fmt::format("core {}: {}", all[i].number, first_line(error.what()));
    }
  });
  const auto run = [&](std::size_t i, const char* part, double seconds) {
    Part done{part, all[i].number, &all[i].list, {}};
    done.result = run_worker(all[i].list, worker_options(options, cores, all[i].number, seconds));
    return done;
  };
  for (std::size_t i = 0; i < all.size() && times.alone > 0; ++i) {
    if (options.begins) options.begins(fmt::format("cpu: core {} alone", all[i].number), times.alone);
    parts.push_back(on_core(all[i].number, [&] { return run(i, "alone", times.alone); }));
  }
  if (options.begins) options.begins("cpu: all cores together", times.together);
  if (options.under_load) options.under_load();
  std::vector<Part> together(all.size());
  every_core([&](std::size_t i) { together[i] = run(i, "together", times.together); });
  for (Part& part : together) parts.push_back(std::move(part));
  at::set_num_threads(threads);
  add_parts(record, parts);
  for (const std::string& sentence : trouble)
    if (!sentence.empty()) record["broken_off"].push_back(sentence);
  for (const std::string& set : sets) {
    if (options.stop != nullptr && options.stop->load()) break;
    if (options.begins) options.begins("cpu: held to " + set, times.narrower);
    std::string why;
    const Json part = screen_held_to(set, options, times.narrower, why);
    if (why.empty())
      add_record(record, part, set);
    else
      record["broken_off"].push_back(fmt::format("instruction set {}: {}", set, why));
  }
  if (times.alone == 0 && options.instruction_set.empty())
    record["not_tested"].push_back(
        fmt::format("cores by themselves: {:.0f} seconds are too short for {} cores", options.seconds, cores.size()));
  const std::vector<int> online = online_cores();
  if (online.size() > cores.size())
    record["not_tested"].push_back(
        fmt::format("{} cores that this process may not run on", online.size() - cores.size()));
}

}  // namespace faultline::screen
