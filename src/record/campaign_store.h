// The trials of a campaign in one SQLite file. A trial is its row and its evidence, committed together or not at all:
// a verdict without evidence cannot exist. (cell, index) is unique, so a campaign resumed after any crash, or run by
// two processes by mistake, holds no trial twice; what is not in the store is still to do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "record/sqlite.h"

namespace faultline::record {

constexpr int kCampaignVersion = 1;

enum class TrialStatus { kPass, kFail, kError };  // an error leaves the denominator

struct TrialKey {
  std::string cell;
  int64_t index = 0;
  bool operator==(const TrialKey&) const = default;
};

struct Trial {
  TrialKey key;
  uint64_t seed = 0;
  TrialStatus status = TrialStatus::kError;
  double started = 0;  // seconds since 1970
  double finished = 0;
  std::string fingerprint = "";  // of the request, so that a changed cell is not taken for done
  Json outcome = Json::object();
  Json evidence = Json::object();
};

enum class StoreUse { kWrite, kRead };  // somebody else's store is read, and stays as it is

class CampaignStore {
 public:
  // Creates the file or continues it; refuses a damaged one, one of a later version, and other people's databases,
  // none of which it changes.
  explicit CampaignStore(const std::filesystem::path& path, StoreUse use = StoreUse::kWrite);

  // Durable when it returns true. False: the trial is there already and stays as it was.
  [[nodiscard]] bool insert(const Trial& trial);

  // What is left of `trials` trials per cell, ordered by index, then by cell as given: cells stay interleaved.
  std::vector<TrialKey> pending(const std::vector<std::string>& cells, int64_t trials);

  // Makes room for another attempt at those of the trials that ended in an error: they stay in the file, as a trial of
  // earlier_attempt(cell, 1), or 2 where that is taken, … Returns how many.
  int64_t set_errors_aside(const std::vector<TrialKey>& keys);

  bool is_there(const TrialKey& key);
  bool empty();
  int64_t count(const std::string& cell);
  void for_each(const std::function<void(Trial&& trial)>& visit);  // by cell, then index
  std::vector<Trial> trials(const std::string& cell);

 private:
  Trial trial_from(const Statement& row) const;

  Database database_;
};

std::string_view to_string(TrialStatus status);

std::string earlier_attempt(std::string_view cell, int64_t number);  // "earlier-1:e5"
std::string_view attempted_cell(std::string_view cell);              // "e5", of that and of "e5"

}  // namespace faultline::record
