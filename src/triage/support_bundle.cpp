#include "triage/support_bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/files/archive.h"
#include "base/files/file.h"
#include "record/redaction.h"
#include "triage/command_trial.h"

namespace faultline::triage {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostRecord = uint64_t{64} << 20;   // bytes of a record, which cannot be cut
constexpr uint64_t kMostBundle = uint64_t{256} << 20;  // of all that is packed
constexpr size_t kMostBundled = 20'000;                // files

enum class Part { kRecord, kLog, kOfCommand, kLeftOut };
struct Judged {
  Part part = Part::kLeftOut;
  std::string why = {};  // it is left out
};

bool is_text_name(const fs::path& path) {
  constexpr std::array<std::string_view, 12> kEndings = {".jsonl", ".ndjson", ".csv", ".tsv", ".json", ".txt",
                                                         ".log",   ".out",    ".err", ".md",  ".yaml", ".yml"};
  return std::find(kEndings.begin(), kEndings.end(), path.extension().string()) != kEndings.end();
}

// By where it lies: the names that campaign.cpp gives.
Judged judge_file(const fs::path& folder, const fs::path& path) {
  const std::string name = path.string(), last = path.filename().string();
  if (name.starts_with("campaign.sqlite"))
    return {Part::kLeftOut, "the store holds the logs as they were; its trials are packed from trials/"};
  if (name == "matrix.html") return {Part::kLeftOut, "a page of matrix.json; `faultline report` makes it again"};
  if (name == "lock") return {Part::kLeftOut, "the folder's lock"};
  for (const char* record : {"recipe.resolved.yaml", "provenance.json", "matrix.json", "matrix.md"})
    if (name == record) return {Part::kRecord};
  std::vector<std::string> parts;
  for (const fs::path& part : path) parts.push_back(part.string());
  if (parts.size() < 3 || parts[0] != "trials") return {Part::kLeftOut, "no file of a triage"};
  if (parts[1].starts_with('.')) return {Part::kLeftOut, "of a trial that did not end"};
  if (parts.size() > 3 && parts[2].ends_with("." + std::string(kFilesOfCommand))) {
    if (!is_text_name(path)) return {Part::kLeftOut, "no text by its name"};
    return {Part::kOfCommand};
  }
  if (parts.size() > 3) return {Part::kLeftOut, "no file of a triage"};
  if (last.ends_with(".json")) return {Part::kRecord};
  if (last.ends_with(".stdout.log") || last.ends_with(".stderr.log")) return {Part::kLog};
  if (!last.ends_with(".log")) return {Part::kLeftOut, "no file of a triage"};
  const std::string trial = (folder / path).string();
  if (fs::exists(trial.substr(0, trial.size() - 4) + ".stdout.log"))
    return {Part::kLeftOut, "the ends of stdout and stderr, which are packed themselves"};
  return {Part::kLog};
}

// The beginning and the end of a text that is too long, each cut at a line's end: half a token could not be recognised.
std::string with_whole_ends(const fs::path& file, uint64_t most, uint64_t& left_out) {
  const uint64_t size = fs::file_size(file);
  if (size <= most) return read_file(file, most);
  std::string head = ends_of(file, most / 2), tail = head.substr(most / 2);
  head.resize(most / 2);
  const size_t last = head.rfind('\n'), first = tail.find('\n');
  head.resize(last == std::string::npos ? 0 : last + 1);
  tail.erase(0, first == std::string::npos ? tail.size() : first + 1);
  left_out = size - head.size() - tail.size();
  return head + fmt::format("[... {} bytes are left out here ...]\n", left_out) + tail;
}

class SupportBundle {
 public:
  explicit SupportBundle(const SupportBundleOptions& options)
      : options_(options),
        name_((fs::absolute(options.folder) / "").lexically_normal().parent_path().filename().string()),
        secrets_(record::secrets_of_environment()) {}

  Json write() {
    for (const fs::path& path : files()) add(path);
    Json contents = {{"name", name_}, {"files", listed_}, {"left_out", left_out_}, {"replaced", replaced_}};
    packed_[name_ + "/contents.json"] = to_json_text(contents, 1) + "\n";
    const std::string archive = tar_archive(packed_);
    write_file_atomically(options_.out, options_.out.extension() == ".tar" ? archive : gzip_compressed(archive));
    return contents;
  }

 private:
  // Relative paths in order. Nothing is reached through a link.
  std::vector<fs::path> files() {
    std::vector<fs::path> found;
    for (fs::recursive_directory_iterator walk(options_.folder), end; walk != end; ++walk) {
      const fs::path path = walk->path().lexically_relative(options_.folder);
      const fs::file_status status = walk->symlink_status();
      if (fs::is_directory(status)) {
        if (path.filename().string().starts_with('.')) {
          leave_out(path, path.parent_path() == "trials" ? "of a trial that did not end" : "hidden");
          walk.disable_recursion_pending();
        }
      } else if (fs::is_regular_file(status)) {
        found.push_back(path);
      } else {
        refuse_link(path, status);
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  // Commands make links; a triage makes none, so one among its records was put there to have something else packed.
  void refuse_link(const fs::path& path, const fs::file_status& status) {
    const bool of_command = std::distance(path.begin(), path.end()) > 3;
    if (!of_command)
      throw UsageError(
          fmt::format("{}: no file but a {} in the place of a record; nothing is packed through it: remove "
                      "it, or put the file itself there",
                      (options_.folder / path).string(), fs::is_symlink(status) ? "link" : "pipe, socket or device"));
    leave_out(path, fs::is_symlink(status) ? "a link: what it names is not packed" : "no regular file");
  }

  void leave_out(const fs::path& path, const std::string& why) {
    left_out_.push_back({{"path", path.string()}, {"why", why}});
  }

  void add(const fs::path& path) {
    const Judged judged = judge_file(options_.folder, path);
    if (judged.part == Part::kLeftOut) return leave_out(path, judged.why);
    const fs::path file = options_.folder / path;
    const uint64_t size = fs::file_size(file);
    const std::string entry = name_ + "/" + path.string();
    if (!fits_tar_name(entry)) return leave_out(path, "its name is too long for the archive");
    if (packed_.size() >= kMostBundled) return leave_out(path, fmt::format("the archive holds {} files", kMostBundled));
    if (judged.part == Part::kRecord && size > kMostRecord)
      return leave_out(path, fmt::format("larger than {} MiB, and a record cannot be cut", kMostRecord >> 20));
    uint64_t cut = 0;
    const bool whole = judged.part == Part::kRecord;
    const std::string text = whole ? read_file(file, kMostRecord) : with_whole_ends(file, options_.most_log, cut);
    if (judged.part == Part::kOfCommand && text.find('\0') != std::string::npos) return leave_out(path, "no text");
    // A redactor of its own, so that the counts are of this file.
    record::Redactor redactor(
        {.values = secrets_,
         .names = options_.hide_names ? record::names_of_caller() : std::map<std::string, std::string>()});
    std::string clean = without_secrets(path, text, redactor);
    if (total_ + clean.size() > kMostBundle)
      return leave_out(path, fmt::format("the archive holds {} MiB already", kMostBundle >> 20));
    total_ += clean.size();
    for (const auto& [kind, count] : redactor.counts()) replaced_[kind] = replaced_.value(kind, int64_t{0}) + count;
    listed_.push_back({{"path", path.string()},
                       {"bytes", size},
                       {"cut", cut},
                       {"packed", clean.size()},
                       {"replaced", redactor.counts()}});
    packed_[entry] = std::move(clean);
  }

  // A JSON text by its strings, so that an escape hides nothing; what is none, as text.
  static std::string json_without_secrets(const std::string& text, int indent, record::Redactor& redactor) {
    try {
      const Json given = parse_json_text(text, "");
      const Json clean = redactor.json(given);
      return clean == given ? text : to_json_text(clean, indent) + "\n";
    } catch (const RuntimeFailure&) {  // damaged, which may be what the bundle is to show
      return redactor.text(text);
    }
  }

  static std::string without_secrets(const fs::path& path, const std::string& text, record::Redactor& redactor) {
    if (path.extension() == ".json") return json_without_secrets(text, 1, redactor);
    if (path.extension() != ".jsonl" && path.extension() != ".ndjson") return redactor.text(text);
    std::string lines;
    for (size_t at = 0, end = 0; at < text.size(); at = end) {
      end = std::min(text.find('\n', at), text.size() - 1) + 1;
      lines += json_without_secrets(text.substr(at, end - at), -1, redactor);
    }
    return lines;
  }

  SupportBundleOptions options_;
  std::string name_;
  std::vector<std::string> secrets_;
  std::map<std::string, std::string> packed_;
  Json listed_ = Json::array(), left_out_ = Json::array(), replaced_ = Json::object();
  uint64_t total_ = 0;
};

void check_folder(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) throw UsageError(fmt::format("{}: there is no such folder", folder.string()));
  if (!fs::exists(folder / "recipe.resolved.yaml", ignored) || !fs::is_directory(folder / "trials", ignored))
    throw UsageError(fmt::format("{}: no folder of a triage; give the one that `faultline triage run --out` named",
                                 folder.string()));
}

void check_archive(const fs::path& out) {
  const std::string name = out.filename().string();
  if (!name.ends_with(".tar") && !name.ends_with(".tar.gz") && !name.ends_with(".tgz"))
    throw UsageError(fmt::format("--out: {} must end in .tar.gz, .tgz or .tar", out.string()));
  if (fs::exists(fs::symlink_status(out)))
    throw UsageError(fmt::format("--out: {} exists already; choose another name or remove it", out.string()));
  const fs::path parent = fs::absolute(out).parent_path();
  if (!fs::is_directory(parent)) throw UsageError(fmt::format("--out: {}: there is no such folder", parent.string()));
}

}  // namespace

Json write_support_bundle(const SupportBundleOptions& options) {
  check_folder(options.folder);
  check_archive(options.out);
  return SupportBundle(options).write();
}

}  // namespace faultline::triage
