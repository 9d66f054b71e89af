// Which rank this process is, from the variables that torchrun, srun (by its script) and our own launcher set.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "race/run_processes.h"

namespace faultline::race {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int64_t integer_variable(const char* name, int64_t min, int64_t max) {
  const std::string text = variable(name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < min || value > max)
    throw UsageError(fmt::format("{}='{}': wanted an integer from {} to {}; the launcher (torchrun, srun) sets it",
                                 name, text, min, max));
  return value;
}

}  // namespace

std::optional<Membership> membership_from_environment() {
  if (variable("RANK").empty()) return std::nullopt;
  Membership m;
  m.ranks = static_cast<int>(integer_variable("WORLD_SIZE", 1, 256));
  m.rank = static_cast<int>(integer_variable("RANK", 0, m.ranks - 1));
  m.local_ranks = variable("LOCAL_WORLD_SIZE").empty()
                      ? m.ranks
                      : static_cast<int>(integer_variable("LOCAL_WORLD_SIZE", 1, m.ranks));
  if (!variable("LOCAL_RANK").empty()) m.local_rank = static_cast<int>(integer_variable("LOCAL_RANK", 0, m.ranks - 1));
  m.address = variable("MASTER_ADDR");
  if (m.address.empty())
    throw UsageError("RANK is set but MASTER_ADDR is not; the launcher (torchrun, srun) sets both, or unset RANK");
  m.port = static_cast<uint16_t>(integer_variable("MASTER_PORT", 1, 65535));
  m.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  m.generation = variable("TORCHELASTIC_RESTART_COUNT").empty() ? "0" : variable("TORCHELASTIC_RESTART_COUNT");
  return m;
}

}  // namespace faultline::race
