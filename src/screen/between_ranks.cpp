#include "screen/between_ranks.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>

#include "base/error.h"
#include "screen/program.h"
#include "screen/screen.h"

namespace faultline::screen {
namespace {

constexpr double kIterationsPerSecond = 4;
constexpr int kFewestIterations = 10;

}  // namespace

BetweenRanks::BetweenRanks(std::filesystem::path program, std::string device, double seconds, uint64_t seed)
    : program_(std::move(program)), device_(std::move(device)), seconds_(seconds), seed_(seed) {}

BetweenRanks::~BetweenRanks() {
  if (running_.joinable()) running_.join();
}

std::optional<cluster::Membership> BetweenRanks::job() {
  std::optional<cluster::Membership> found = cluster::membership_from_environment();
  return found && found->ranks > 1 ? found : std::nullopt;
}

void BetweenRanks::start() {
  if (running_.joinable()) return;
  running_ = std::thread([this, job = *job()] {
    const int iterations = std::max(kFewestIterations, static_cast<int>(kIterationsPerSecond * seconds_));
    const bool gpu = device_ != "cpu";
    std::vector<std::string> words = {program_.string(), "race", "--json", "--quiet", "--seed", std::to_string(seed_)};
    if (gpu) words.insert(words.end(), {"--transport", "nccl", "--device", device_});
    words.insert(words.end(), {"mode=fsdp", "num_layers=2", "warmup_iterations=0", "stop_on_first_corruption=false",
                               "simulate_compute=false", "~model_dim", "~num_heads", "~seq_len", "h2d_tensor_size=0",
                               fmt::format("fsdp_shard_size={}", gpu ? 4000000 : 20000),
                               fmt::format("verify_iterations={}", iterations)});
    std::string text;
    const auto status = run_program(std::move(words), record::ChildEnvironment(record::inherited_environment()), text);
    result_ = {{"rank", job.rank},
               {"ranks", job.ranks},
               {"iterations", iterations},
               {"exit_code", status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1}};
    Json told;  // rank 0 alone prints
    try {
      if (!text.empty()) told = parse_json_text(text, "race");
    } catch (const Error&) {
      result_["exit_code"] = -1;
    }
    if (!told.is_object()) return;
    for (const char* key : {"verdict", "sentence", "blamed", "seconds"}) result_[key] = told.value(key, Json());
    int64_t collectives = 0, bytes = 0;
    for (const Json& rank : told.value("evidence", Json::array()))
      collectives += rank.value("collectives", int64_t{0}), bytes += rank.value("collective_bytes", int64_t{0});
    result_["collectives"] = collectives, result_["bytes"] = bytes;
  });
}

Json BetweenRanks::finish() {
  if (!running_.joinable()) return {{"exit_code", -1}, {"sentence", "the device was not put under load"}};
  running_.join();
  return result_;
}

void add_between_ranks(Json& record, const Json& result) {
  record["between_ranks"] = result;
  const int code = result["exit_code"].get<int>();
  if (code != static_cast<int>(ExitCode::kOk) && code != static_cast<int>(ExitCode::kFound))
    record["broken_off"].push_back(fmt::format("collectives between ranks: `faultline race` ended with {}", code));
  judge(record);
}

}  // namespace faultline::screen
