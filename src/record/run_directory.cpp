// Order of creation: lock, checkpoints/, manifest in the hidden folder; rename; events. A kill before the rename leaves
// a hidden folder nobody looks at, a kill after it a run that resumes at step 0.
#include "record/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/error.h"
#include "base/files/file.h"
#include "record/document.h"

namespace faultline::record {
namespace {

constexpr size_t kMaxNameBytes = 80;
constexpr int kMaxSameNames = 100000;

void make_directories(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_with_errno(path, "create the directory", error.value());
}

// Removes the hidden folder unless it became the run directory.
class Staging {
 public:
  explicit Staging(const std::filesystem::path& root) {
    for (int attempt = 0; attempt < kMaxSameNames; ++attempt) {
      path_ = root / fmt::format(".new-{}-{}", ::getpid(), attempt);
      if (::mkdir(path_.c_str(), 0755) == 0) return;
      if (errno != EEXIST) fail_with_errno(path_, "create the directory", errno);
    }
    throw RuntimeFailure(fmt::format("{}: too many abandoned .new-* folders; delete them", root.string()));
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

  // False when the name is taken. Plain rename() would replace an empty folder; where NOREPLACE is unknown to the file
  // system that is the worst that happens.
  bool rename_to(const std::filesystem::path& target) {
    int result = ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) result = std::rename(path_.c_str(), target.c_str());
    if (result == 0) path_.clear();
    if (result != 0 && errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
      fail_with_errno(target, "create", errno);
    return result == 0;
  }

 private:
  std::filesystem::path path_;
};

Json to_json(const Summary& summary) {
  return {{"step_reached", summary.step_reached},
          {"steps_planned", summary.steps_planned},
          {"step_evaluated", summary.step_evaluated ? Json(*summary.step_evaluated) : Json()},
          {"complete", summary.complete()},
          {"results", summary.results}};
}

Summary summary_from_json(const Json& document, const std::filesystem::path& path) {
  try {
    Summary summary;
    summary.step_reached = document.at("step_reached").get<int64_t>();
    summary.steps_planned = document.at("steps_planned").get<int64_t>();
    const Json& evaluated = document.at("step_evaluated");
    if (!evaluated.is_null()) summary.step_evaluated = evaluated.get<int64_t>();
    summary.results = document.at("results");
    return summary;
  } catch (const Json::exception&) {
    throw RuntimeFailure(
        fmt::format("{}: wanted step_reached, steps_planned, step_evaluated and results, at least one is missing or of "
                    "another type",
                    path.string()));
  }
}

}  // namespace

bool Summary::complete() const {
  return step_reached == steps_planned && (!step_evaluated || *step_evaluated == step_reached);
}

std::string sanitized_run_name(const std::string& name) {
  std::string result;
  for (const char c : name.substr(0, kMaxNameBytes)) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    const bool inner = !result.empty() && (c == '-' || c == '.');
    result += letter || inner ? c : '_';
  }
  return result.empty() ? "run" : result;
}

RunDirectory::RunDirectory(std::filesystem::path path, DirectoryLock lock, Manifest manifest)
    : path_(std::move(path)), lock_(std::move(lock)), manifest_(std::move(manifest)), events_(path_ / "events.jsonl") {}

RunDirectory RunDirectory::create(const std::filesystem::path& root, Manifest manifest, const Clock& clock) {
  manifest.created = clock();
  make_directories(root);
  Staging staging(root);
  DirectoryLock lock(staging.path());
  make_directories(staging.path() / "checkpoints");
  write_manifest(staging.path() / "manifest.json", manifest);
  const std::string name = fmt::format("{}-{}-{}", sanitized_run_name(manifest.recipe_name),
                                       utc_timestamp(manifest.created), manifest.hash().substr(0, 8));
  for (int attempt = 1; attempt < kMaxSameNames; ++attempt) {
    const std::filesystem::path target = root / (attempt == 1 ? name : fmt::format("{}-{}", name, attempt));
    if (!staging.rename_to(target)) continue;
    sync_directory(root);
    return RunDirectory(target, std::move(lock), read_manifest(target / "manifest.json"));
  }
  throw RuntimeFailure(fmt::format("{}: {} runs are called {}; move some away", root.string(), kMaxSameNames, name));
}

RunDirectory RunDirectory::open(const std::filesystem::path& directory, const Json& resolved_recipe) {
  const std::filesystem::path manifest_path = directory / "manifest.json";
  read_manifest(manifest_path);  // before the lock, which would leave its file in a folder that is no run
  DirectoryLock lock(directory);
  Manifest manifest = read_manifest(manifest_path);
  require_same_recipe(manifest, resolved_recipe, directory);
  remove_stale_temporaries(directory);
  make_directories(directory / "checkpoints");
  return RunDirectory(directory, std::move(lock), std::move(manifest));
}

std::filesystem::path RunDirectory::checkpoint_path(int64_t step) const {
  FL_ASSERT(step >= 0);
  return path_ / "checkpoints" / fmt::format("step-{:06}", step);
}

void RunDirectory::write_ledger(const Json& ledger) const {
  write_document(path_ / "ledger.json", "ledger", {{"ledger", ledger}});
}

void RunDirectory::write_summary(const Summary& summary) const {
  FL_ASSERT(summary.step_reached >= 0 && summary.step_reached <= summary.steps_planned);
  FL_ASSERT(!summary.step_evaluated || *summary.step_evaluated <= summary.step_reached);
  write_document(path_ / "summary.json", "summary", to_json(summary));
}

RunRecord read_run(const std::filesystem::path& directory) {
  RunRecord record;
  record.manifest = read_manifest(directory / "manifest.json");
  const std::filesystem::path ledger = directory / "ledger.json";
  const std::filesystem::path summary = directory / "summary.json";
  const std::filesystem::path events = directory / "events.jsonl";
  std::error_code ignored;  // what cannot be examined cannot be read either
  if (std::filesystem::exists(ledger, ignored)) record.ledger = read_document(ledger, "ledger").value("ledger", Json());
  if (std::filesystem::exists(summary, ignored))
    record.summary = summary_from_json(read_document(summary, "summary"), summary);
  if (std::filesystem::exists(events, ignored)) record.events = read_events(events);
  return record;
}

}  // namespace faultline::record
