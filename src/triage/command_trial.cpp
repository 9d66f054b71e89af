#include "triage/command_trial.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "base/config/config.h"
#include "base/error.h"
#include "base/files/file.h"
#include "triage/output_patterns.h"
#include "triage/trial_rules.h"

namespace faultline::triage {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kScanned = size_t{8} << 20;  // bytes of each end of an output
constexpr auto kLookEvery = std::chrono::milliseconds(10), kLookOften = std::chrono::milliseconds(1);

std::atomic<bool> asked_to_end = false;
void on_signal(int) { asked_to_end = true; }

struct Started {
  pid_t id = -1;
  std::string error;  // why it could not be started
};

struct Ended {
  int status = 0;  // as waitpid tells it
  bool timed_out = false, interrupted = false;
  double seconds = 0;
};

// After the fork: nothing that allocates. What goes wrong travels back through the pipe, which a good start closes.
[[noreturn]] void become(char* const* words, const char* out, const char* err, int report) {
  ::setpgid(0, 0);
  const int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int output = ::open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const int errors = ::open(err, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (input >= 0 && output >= 0 && errors >= 0 && ::dup2(input, 0) >= 0 && ::dup2(output, 1) >= 0 &&
      ::dup2(errors, 2) >= 0) {
    for (const int signal : {SIGPIPE, SIGTERM, SIGINT}) std::signal(signal, SIG_DFL);
    ::execvp(words[0], words);
  }
  const int why = errno;
  (void)!::write(report, &why, sizeof why);
  ::_exit(127);
}

Started start(std::vector<std::string> command, const std::filesystem::path& folder) {
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  const std::string out = (folder / "stdout.log").string(), err = (folder / "stderr.log").string();
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0)
    throw RuntimeFailure(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  const FileDescriptor read(report[0]);
  FileDescriptor write(report[1]);
  Started started;
  started.id = ::fork();
  if (started.id < 0) throw RuntimeFailure(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (started.id == 0) become(words.data(), out.c_str(), err.c_str(), report[1]);
  ::setpgid(started.id, started.id);
  write = FileDescriptor();
  int why = 0;
  if (::read(read.get(), &why, sizeof why) == static_cast<ssize_t>(sizeof why)) {
    ::waitpid(started.id, nullptr, 0);
    started.error = fmt::format("'{}' could not be started: {}", command[0], std::strerror(why));
  }
  return started;
}

// All processes below this one. An orphan among them is a child of ours: we are the subreaper.
std::set<pid_t> descendants() {
  std::map<pid_t, pid_t> parents;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const size_t end = text.rfind(')');  // of the program's name, which may hold anything
    int parent = 0;
    char state = 0;
    if (end != std::string::npos && std::sscanf(text.c_str() + end + 1, " %c %d", &state, &parent) == 2)
      parents[static_cast<pid_t>(std::stoll(name))] = parent;
  }
  std::set<pid_t> below;
  for (bool grew = true; grew;) {
    grew = false;
    for (const auto& [id, parent] : parents)
      if ((parent == ::getpid() || below.contains(parent)) && below.insert(id).second) grew = true;
  }
  return below;
}

void reap() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

// Asks all of them to end, waits, and ends those that stay.
void end_everything() {
  const Clock::time_point last = Clock::now() + std::chrono::milliseconds(static_cast<int>(1000 * kEndingTime));
  for (const pid_t id : descendants()) ::kill(id, SIGTERM);
  for (reap(); !descendants().empty() && Clock::now() < last; reap()) std::this_thread::sleep_for(kLookEvery);
  for (std::set<pid_t> left = descendants(); !left.empty(); left = descendants()) {
    for (const pid_t id : left) ::kill(id, SIGKILL);
    std::this_thread::sleep_for(kLookEvery);
    reap();
  }
}

Ended watch(pid_t command, Clock::time_point begin, double timeout) {
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  Ended ended;
  while (::waitpid(command, &ended.status, WNOHANG) != command) {
    ended.interrupted = asked_to_end;
    ended.timed_out = timeout > 0 && seconds() > timeout;
    if (ended.timed_out || ended.interrupted) break;
    std::this_thread::sleep_for(kLookOften);
  }
  ended.seconds = seconds();
  end_everything();
  return ended;
}

struct Tier {
  const char* outcome;
  const char* verdict;
  std::string sentence;
};

// The first tier that applies.
Tier tier_of(const Ended& ended, double timeout, const OutputScan& scan, const RuleFindings& findings) {
  if (ended.interrupted) return {"did_not_run", "error", "interrupted"};
  if (ended.timed_out) return {"hung", "fail", fmt::format("took longer than {} s and was ended", timeout)};
  if (WIFSIGNALED(ended.status)) {
    const int signal = WTERMSIG(ended.status);
    return {"crashed", "fail", fmt::format("ended by signal {} ({})", signal, ::strsignal(signal))};
  }
  const int status = WEXITSTATUS(ended.status);
  if (const std::string why = unproven(findings.tap, status != 0); !why.empty()) return {"unproven", "error", why};
  if (status != 0) return {"crashed", "fail", fmt::format("exited with status {}", status)};
  if (const std::string wrong = scan.wrong(); !wrong.empty()) return {"wrong", "fail", wrong};
  if (!findings.wrong.empty()) return {"wrong", "fail", findings.wrong};
  return {"clean", "pass", "exited with status 0"};
}

Json matches_json(const OutputScan& scan) {
  Json matches = Json::array();
  constexpr std::array kWords = {"fail", "warn", "info"};
  for (const OutputMatch& match : scan.matches)
    matches.push_back({{"id", match.id},
                       {"on_match", kWords[static_cast<size_t>(match.on_match)]},
                       {"line", match.line.substr(0, 1000)}});
  return matches;
}

Json answer_of(const Tier& tier, const Ended& ended, const OutputScan& scan, const RuleFindings& findings) {
  const bool clean = std::string_view(tier.outcome) == "clean";
  const Json time =
      clean ? Json({{"median", ended.seconds}}) : Json(nullptr);  // a crash is fast, and that means nothing
  const bool exited = WIFEXITED(ended.status) && !ended.timed_out;
  Json answer = {{"verdict", tier.verdict},
                 {"outcome", tier.outcome},
                 {"sentence", tier.sentence},
                 {"exit_status", exited ? Json(WEXITSTATUS(ended.status)) : Json(nullptr)},
                 {"patterns", matches_json(scan)},
                 {"missing", scan.missing},
                 {"capture", scan.capture},
                 {"evidence",
                  {{{"events", {{"count", 0}}}, {"collectives", 0}, {"collective_bytes", 0}, {"step_seconds", time}}}}};
  answer.update(findings.json);
  return answer;
}

// For commands that pass their environment on by a file, `docker run --env-file "$AORTA_ENV_FILE"` for one.
void write_environment_file(const Json& variables, const std::filesystem::path& file) {
  std::string text;
  for (const auto& [name, value] : variables.items()) text += fmt::format("{}={}\n", name, value.get<std::string>());
  write_file_atomically(file, text);
  std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  ::setenv("AORTA_ENV_FILE", file.c_str(), 1);
}

// The command's own folder, and how it learns of it. -> its words with the folder's name in place
std::vector<std::string> with_folder(std::vector<std::string> command, const std::filesystem::path& files,
                                     EvidenceUse evidence) {
  std::filesystem::create_directories(files);
  const std::string folder = std::filesystem::absolute(files).lexically_normal().string();
  ::setenv(kTrialFolderVariable, folder.c_str(), 1);
  if (evidence != EvidenceUse::kIgnored) ::setenv("FAULTLINE_EVIDENCE", (folder + "/evidence").c_str(), 1);
  const std::string mark = kTrialFolderWord;
  for (std::string& word : command)
    for (size_t at = word.find(mark); at != std::string::npos; at = word.find(mark, at + folder.size()))
      word.replace(at, mark.size(), folder);
  return command;
}

void take_over_orphans() {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) asked_to_end = true;
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, on_signal);
}

}  // namespace

std::string ends_of(const std::filesystem::path& path, size_t bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const auto size = static_cast<size_t>(file.tellg());
  const size_t head = std::min(size, bytes), tail = std::min(size - head, bytes);
  std::string text(head + tail, '\0');
  file.seekg(0).read(text.data(), static_cast<std::streamsize>(head));
  file.seekg(static_cast<std::streamoff>(size - tail)).read(text.data() + head, static_cast<std::streamsize>(tail));
  return text;
}

void run_command_trial(const std::filesystem::path& folder) {
  const Json request = parse_json_text(read_file(folder / "request.json", size_t{1} << 30), "request.json");
  const double timeout = request.at("timeout");
  const auto patterns =
      read_patterns(validate(faultline::from_json(request.at("patterns"), "request.json"), patterns_schema()));
  const TrialRules rules = read_rules(request.at("rules"));
  take_over_orphans();
  if (request.at("environment_file") == true)
    write_environment_file(request.at("variables"), std::filesystem::absolute(folder / "probe.env"));
  const std::filesystem::path files = folder / kFilesOfCommand;
  const std::vector<std::string> command =
      with_folder(request.at("command").get<std::vector<std::string>>(), files, rules.evidence);
  const Clock::time_point begin = Clock::now();
  const Started started = start(command, folder);
  Json result;
  if (!started.error.empty()) {
    result = answer_of({"did_not_run", "error", started.error}, {}, {}, {});
  } else {
    const Ended ended = watch(started.id, begin, timeout);
    const OutputScan found =
        scan(patterns, ends_of(folder / "stdout.log", kScanned) + "\n" + ends_of(folder / "stderr.log", kScanned));
    const RuleFindings findings = apply(rules, files);
    result = answer_of(tier_of(ended, timeout, found, findings), ended, found, findings);
  }
  write_file_atomically(folder / "response.json", to_json_text({{"nonce", request.at("nonce")}, {"result", result}}));
}

}  // namespace faultline::triage
