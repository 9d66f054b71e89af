// Seeds are text in the database: SQLite's integers are signed, and a seed people copy must be the one they typed.
// Non-finite numbers in outcome and evidence are strings, as in every record (json_text.h).
#include "record/campaign_store.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "base/error.h"

namespace faultline::record {
namespace {

constexpr int64_t kApplicationId = 0x464C5431;  // "FLT1": tells our file from any other SQLite database

constexpr std::string_view kEarlier = "earlier-";

constexpr const char* kSchema = R"(
CREATE TABLE trial(
  id INTEGER PRIMARY KEY,
  cell TEXT NOT NULL,
  trial_index INTEGER NOT NULL CHECK (trial_index >= 0),
  seed TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('pass', 'fail', 'error')),
  started REAL NOT NULL,
  finished REAL NOT NULL,
  fingerprint TEXT NOT NULL,
  outcome TEXT NOT NULL,
  UNIQUE (cell, trial_index)
);
CREATE TABLE evidence(
  trial INTEGER PRIMARY KEY REFERENCES trial(id) ON DELETE CASCADE,
  body TEXT NOT NULL
);
)";

constexpr std::string_view kSelect =
    "SELECT cell, trial_index, seed, status, started, finished, fingerprint, outcome, body "
    "FROM trial LEFT JOIN evidence ON evidence.trial = trial.id ";

// Nothing is in it yet. RuntimeFailure: it is not ours.
bool is_new(Database& database) {
  // One statement sees one state of the file: between two, another process may have made it a store.
  Statement state(database,
                  "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema) "
                  "FROM pragma_user_version, pragma_application_id");
  (void)state.step();
  const int64_t version = state.integer(0), application = state.integer(1), tables = state.integer(2);
  if (version == 0 && application == 0 && tables == 0) return true;
  if (application != kApplicationId || version < 1)
    throw RuntimeFailure(
        fmt::format("{}: a database, but not a campaign of faultline; choose another file", database.path()));
  if (version > kCampaignVersion)
    throw RuntimeFailure(fmt::format("{}: written as campaign version {}, this program knows {}; use a newer faultline",
                                     database.path(), version, kCampaignVersion));
  return false;
}

void prepare_schema(Database& database) {
  Transaction transaction(database);
  if (is_new(database)) {
    database.execute(kSchema);
    database.execute(
        fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {};", kApplicationId, kCampaignVersion).c_str());
  }
  transaction.commit();
}

TrialStatus status_from(const std::string& text, const std::string& place) {
  for (const TrialStatus status : {TrialStatus::kPass, TrialStatus::kFail, TrialStatus::kError}) {
    if (text == to_string(status)) return status;
  }
  throw RuntimeFailure(fmt::format("{}: status: wanted pass, fail or error, found '{}'", place, text));
}

uint64_t seed_from(const std::string& text, const std::string& place) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw RuntimeFailure(fmt::format("{}: seed: wanted a 64-bit number, found '{}'", place, text));
  }
  return seed;
}

}  // namespace

std::string_view to_string(TrialStatus status) {
  switch (status) {
    case TrialStatus::kPass: return "pass";
    case TrialStatus::kFail: return "fail";
    case TrialStatus::kError: return "error";
  }
  FL_ASSERT(false);
  return "";
}

std::string earlier_attempt(std::string_view cell, int64_t number) {
  return fmt::format("{}{}:{}", kEarlier, number, cell);
}

std::string_view attempted_cell(std::string_view cell) {
  const std::size_t colon = cell.find(':');
  return cell.starts_with(kEarlier) && colon != std::string_view::npos ? cell.substr(colon + 1) : cell;
}

CampaignStore::CampaignStore(const std::filesystem::path& path, StoreUse use)
    : database_(path, use == StoreUse::kRead ? Database::Access::kRead : Database::Access::kWrite) {
  const std::string damage = database_.text("PRAGMA quick_check(1)");
  if (damage != "ok") {
    throw RuntimeFailure(
        fmt::format("{}: damaged: {}; restore it from a copy, or start a new campaign", path.string(), damage));
  }
  const bool fresh = is_new(database_);
  if (use == StoreUse::kRead) {
    if (fresh) throw RuntimeFailure(fmt::format("{}: an empty database; no trial was kept in it", path.string()));
    return;
  }
  database_.switch_to_wal();
  prepare_schema(database_);
}

bool CampaignStore::insert(const Trial& trial) {
  FL_ASSERT(trial.key.index >= 0);
  Transaction transaction(database_);
  Statement row(database_,
                "INSERT INTO trial(cell, trial_index, seed, status, started, finished, fingerprint, outcome) "
                "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (cell, trial_index) DO NOTHING");
  row.bind(1, trial.key.cell).bind(2, trial.key.index).bind(3, std::to_string(trial.seed));
  row.bind(4, to_string(trial.status)).bind(5, trial.started).bind(6, trial.finished);
  row.bind(7, trial.fingerprint).bind(8, to_json_text(trial.outcome)).step();
  if (sqlite3_changes64(database_.get()) == 0) return false;
  Statement evidence(database_, "INSERT INTO evidence(trial, body) VALUES (last_insert_rowid(), ?1)");
  evidence.bind(1, to_json_text(trial.evidence)).step();
  transaction.commit();
  return true;
}

std::vector<TrialKey> CampaignStore::pending(const std::vector<std::string>& cells, int64_t trials) {
  std::vector<std::set<int64_t>> done(cells.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    Statement rows(database_, "SELECT trial_index FROM trial WHERE cell = ?1");
    rows.bind(1, cells[i]);
    while (rows.step()) done[i].insert(rows.integer(0));
  }
  std::vector<TrialKey> left;
  for (int64_t index = 0; index < trials; ++index) {
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!done[i].contains(index)) left.push_back({cells[i], index});
    }
  }
  return left;
}

int64_t CampaignStore::set_errors_aside(const std::vector<TrialKey>& keys) {
  int64_t moved = 0;
  Transaction transaction(database_);
  for (const TrialKey& key : keys) {
    int64_t number = 1;
    while (is_there({earlier_attempt(key.cell, number), key.index})) ++number;
    Statement row(database_, "UPDATE trial SET cell = ?1 WHERE cell = ?2 AND trial_index = ?3 AND status = 'error'");
    row.bind(1, earlier_attempt(key.cell, number)).bind(2, key.cell).bind(3, key.index).step();
    moved += sqlite3_changes64(database_.get());
  }
  transaction.commit();
  return moved;
}

bool CampaignStore::is_there(const TrialKey& key) {
  Statement row(database_, "SELECT count(*) FROM trial WHERE cell = ?1 AND trial_index = ?2");
  row.bind(1, key.cell).bind(2, key.index).step();
  return row.integer(0) > 0;
}

bool CampaignStore::empty() {
  Statement row(database_, "SELECT count(*) FROM (SELECT 1 FROM trial LIMIT 1)");
  row.step();
  return row.integer(0) == 0;
}

int64_t CampaignStore::count(const std::string& cell) {
  Statement row(database_, "SELECT count(*) FROM trial WHERE cell = ?1");
  row.bind(1, cell).step();
  return row.integer(0);
}

Trial CampaignStore::trial_from(const Statement& row) const {
  Trial trial;
  trial.key = {row.text(0), row.integer(1)};
  const std::string place = fmt::format("{}: cell '{}' trial {}", database_.path(), trial.key.cell, trial.key.index);
  trial.seed = seed_from(row.text(2), place);
  trial.status = status_from(row.text(3), place);
  trial.started = row.real(4);
  trial.finished = row.real(5);
  trial.fingerprint = row.text(6);
  trial.outcome = parse_json_text(row.text(7), place + ": outcome");
  if (row.is_null(8))
    throw EvidenceError(ComplaintCode::kNoEvidence, place + ": a verdict without evidence; the file was edited");
  trial.evidence = parse_json_text(row.text(8), place + ": evidence");
  return trial;
}

void CampaignStore::for_each(const std::function<void(Trial&& trial)>& visit) {
  Statement rows(database_, std::string(kSelect) + "ORDER BY cell, trial_index");
  while (rows.step()) visit(trial_from(rows));
  database_.expect_unchanged();
}

std::vector<Trial> CampaignStore::trials(const std::string& cell) {
  Statement rows(database_, std::string(kSelect) + "WHERE cell = ?1 ORDER BY trial_index");
  rows.bind(1, cell);
  std::vector<Trial> found;
  while (rows.step()) found.push_back(trial_from(rows));
  database_.expect_unchanged();
  return found;
}

}  // namespace faultline::record
