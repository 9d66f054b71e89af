#include "cluster/ray_cluster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "record/environment.h"

namespace faultline {
namespace {

std::filesystem::path helper_script(const std::filesystem::path& program) {
  const std::filesystem::path folder = program.parent_path();
  for (const auto& place : {folder / "python", folder / ".." / "python"}) {
    const auto script = place / "faultline" / "ray_executor.py";
    if (std::filesystem::exists(script)) return std::filesystem::canonical(script);
  }
  throw UsageError(fmt::format("--executor ray needs python/faultline/ray_executor.py beside {} or in the folder above",
                               folder.string()));
}

// A process and the two ends of our conversation with it.
struct Helper {
  pid_t id = -1;
  int to = -1, from = -1;
};

Helper start_helper(const std::string& python, const std::filesystem::path& script,
                    const std::filesystem::path& program) {
  std::array<int, 2> in{}, out{};
  if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0)
    throw RuntimeFailure(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  const std::string script_text = script.string(), program_text = program.string();
  const char* const arguments[] = {python.c_str(), script_text.c_str(), program_text.c_str(), nullptr};
  const pid_t id = ::fork();
  if (id < 0) throw RuntimeFailure(fmt::format("cannot start {}: {}", python, std::strerror(errno)));
  if (id == 0) {
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::setpgid(0, 0);  // an interrupt at the terminal is ours to handle
    ::execvp(python.c_str(), const_cast<char* const*>(arguments));
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  return {id, in[1], out[0]};
}

}  // namespace

RayCluster::RayCluster(const std::filesystem::path& program, const std::string& python,
                       const std::atomic<bool>* interrupted)
    : interrupted_(interrupted) {
  const Helper helper = start_helper(python, helper_script(program), program);
  helper_ = helper.id, to_ = helper.to, from_ = helper.from;
  ::signal(SIGPIPE, SIG_IGN);  // a helper that is gone shows as an error of write
  reader_ = std::jthread([this] { read_lines(); });
  const Json hello = next_answer(0);
  if (hello.contains("error")) {
    ::close(to_);  // or the helper, and with it our reader, would wait for ever
    throw RuntimeFailure(hello.at("error").get<std::string>());
  }
  slots_ = hello.at("slots");
  nodes_ = hello.at("nodes");
}

RayCluster::~RayCluster() {
  ::close(to_);  // the helper's input ends: it leaves the cluster and exits
  reader_.join();
  ::close(from_);
  ::waitpid(helper_, nullptr, 0);
}

int64_t RayCluster::start(const RemoteTask& task) {
  const int64_t number = ++last_;
  send({{"id", number},
        {"folder", std::filesystem::absolute(task.folder).string()},
        {"arguments", task.arguments},
        {"input", task.input},
        {"output", task.output},
        {"wanted", task.wanted},
        {"directory", task.directory},
        {"variables", task.variables},
        {"inherits", inheritance()},
        {"processors", task.processors},
        {"timeout", task.timeout}});
  return number;
}

RemoteEnd RayCluster::wait(int64_t task) { return end_of(next_answer(task)); }

std::pair<int64_t, RemoteEnd> RayCluster::wait_any() {
  const Json answer = next_answer(std::nullopt);
  return {answer.value("id", int64_t{0}), end_of(answer)};
}

RemoteEnd RayCluster::end_of(const Json& answer) {
  RemoteEnd end;
  end.status = answer.value("status", 0);
  end.timed_out = answer.value("timed_out", false);
  end.interrupted = answer.value("interrupted", false);
  end.seconds = answer.value("seconds", 0.0);
  end.error = answer.value("error", std::string());
  lost_ += answer.value("lost", int64_t{0});
  return end;
}

void RayCluster::send(const Json& message) {
  const std::string line = to_json_text(message) + "\n";
  const std::lock_guard<std::mutex> lock(send_mutex_);
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(to_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // the helper is gone; whoever waits for its answer is told so
    done += static_cast<size_t>(n);
  }
}

void RayCluster::read_lines() {
  std::string pending;
  std::array<char, 65536> buffer{};
  for (;;) {
    const ssize_t n = ::read(from_, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    pending.append(buffer.data(), static_cast<size_t>(n));
    for (size_t end = 0; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      Json answer;
      try {
        answer = parse_json_text(pending.substr(0, end), "the helper's answer");
      } catch (const std::exception&) {
        continue;  // something else that printed to the helper's output
      }
      if (!answer.is_object() || !answer.contains("id") || !answer["id"].is_number_integer()) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      const int64_t number = answer.at("id").get<int64_t>();
      answers_[number] = std::move(answer);
      arrived_.notify_all();
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  gone_ = true;
  arrived_.notify_all();
}

// The answer with this number, or whichever comes first; {"interrupted": true} as soon as somebody wants us to stop.
Json RayCluster::next_answer(std::optional<int64_t> number) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const auto found = number ? answers_.find(*number) : answers_.begin();
    if (found != answers_.end()) {
      Json answer = std::move(found->second);
      answers_.erase(found);
      return answer;
    }
    if (gone_) return {{"error", "the Ray helper ended before it answered; its messages are on stderr"}};
    if (interrupted_ != nullptr && *interrupted_) return {{"interrupted", true}, {"error", "interrupted"}};
    arrived_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

}  // namespace faultline
