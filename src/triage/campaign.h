// The matrix as it runs: trials of all cells in shuffled blocks, so that a drift of the machine meets every cell alike;
// each result durable before the next trial starts, so that a runner killed at any moment goes on where it was and no
// trial is recorded twice. The campaign store is the record; files beside it are copies for people and are made again
// from it.
#pragma once

#include <filesystem>
#include <functional>

#include "triage/statistics.h"

namespace faultline::triage {

struct CampaignOptions {
  std::filesystem::path folder;
  std::function<void(const RecordedTrial&, int64_t done, int64_t total)> on_trial;
  Json provenance = nullptr;  // who asks: kept as provenance.json by the first call
};

struct CampaignResult {
  Matrix matrix;
  int64_t ran = 0, resumed = 0;  // trials of this call, and of earlier ones
  int64_t lost = 0;              // tried again, because a machine was lost
  bool interrupted = false;
};

// UsageError where the folder belongs to another recipe or to something else.
CampaignResult run_campaign(const Plan& plan, trials::Executor& executor, const CampaignOptions& options);

// The order of trials: every block holds each cell once.
struct Turn {
  size_t cell;
  int64_t index;
};
std::vector<Turn> order_of(const Plan& plan);

}  // namespace faultline::triage
