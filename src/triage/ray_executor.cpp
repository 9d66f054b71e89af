#include "triage/ray_executor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "record/atomic_file.h"
#include "record/file_descriptor.h"
#include "record/json_text.h"

namespace faultline::triage {
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

// The helper: a process and the two ends of our conversation with it.
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

class Ray : public RayExecutor {
 public:
  Ray(const std::filesystem::path& program, const std::string& python, const std::atomic<bool>* interrupted)
      : helper_(start_helper(python, helper_script(program), program)), interrupted_(interrupted) {
    reader_ = std::jthread([this] { read_lines(); });
    const Json hello = wait_for(0, "");
    if (hello.contains("error")) {
      ::close(helper_.to);  // or the helper, and with it our reader, would wait for ever
      throw RuntimeFailure(hello.at("error").get<std::string>());
    }
    slots_ = hello.at("slots");
    nodes_ = hello.at("nodes");
  }
  ~Ray() override {
    ::close(helper_.to);  // the helper's input ends: it leaves the cluster and exits
    reader_.join();
    ::close(helper_.from);
    ::waitpid(helper_.id, nullptr, 0);
  }

  int slots() const override { return slots_; }
  int64_t nodes() const override { return nodes_; }
  int64_t lost() const override { return lost_; }

  TrialResult run(const TrialRequest& request, const std::filesystem::path& folder) override {
    const std::string nonce = write_request(request, folder);
    const int64_t number = ++last_;
    const Json message = {{"id", number},
                          {"request", read_file(folder / "request.json", size_t{1} << 24)},
                          {"variables", request.variables},
                          {"ranks", request.ranks},
                          {"timeout", request.timeout}};
    send(message);
    const Json answer = wait_for(number, request.cell);
    Ended ended;
    ended.interrupted = answer.value("interrupted", false);
    ended.timed_out = answer.value("timed_out", false);
    ended.status = answer.value("status", 0);
    lost_ += answer.value("lost", int64_t{0});
    TrialResult result;
    if (answer.contains("error")) {
      result.severity = "infrastructure_failed";
      result.sentence = answer.at("error").get<std::string>();
    } else {
      if (answer.contains("response"))
        write_file_atomically(folder / "response.json", answer.at("response").get<std::string>());
      write_file_atomically(folder / "log.txt", answer.value("log", std::string()));
      result = read_result(ended, request.timeout, folder, nonce);
    }
    result.seconds = answer.value("seconds", 0.0);
    return result;
  }

 private:
  void send(const Json& message) {
    const std::string line = to_json_text(message) + "\n";
    const std::lock_guard<std::mutex> lock(send_mutex_);
    for (size_t done = 0; done < line.size();) {
      const ssize_t n = ::write(helper_.to, line.data() + done, line.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;  // the helper is gone; whoever waits for its answer is told so
      done += static_cast<size_t>(n);
    }
  }

  void read_lines() {
    std::string pending;
    std::array<char, 65536> buffer{};
    for (;;) {
      const ssize_t n = ::read(helper_.from, buffer.data(), buffer.size());
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

  // -> {"interrupted": true} as soon as somebody wants us to stop
  Json wait_for(int64_t number, const std::string& cell) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      const auto found = answers_.find(number);
      if (found != answers_.end()) {
        Json answer = std::move(found->second);
        answers_.erase(found);
        return answer;
      }
      if (gone_)
        return {{"error", fmt::format("the Ray helper ended before it answered{}; its messages are on stderr",
                                      cell.empty() ? "" : fmt::format(" for cell '{}'", cell))}};
      if (interrupted_ != nullptr && *interrupted_) return {{"interrupted", true}, {"error", "interrupted"}};
      arrived_.wait_for(lock, std::chrono::milliseconds(100));
    }
  }

  Helper helper_;
  const std::atomic<bool>* interrupted_;
  int slots_ = 1;
  int64_t nodes_ = 0;
  std::atomic<int64_t> lost_{0}, last_{0};
  std::mutex mutex_, send_mutex_;
  std::condition_variable arrived_;
  std::map<int64_t, Json> answers_;
  bool gone_ = false;
  std::jthread reader_;
};

}  // namespace

std::unique_ptr<RayExecutor> ray_executor(const std::filesystem::path& program, const std::string& python,
                                          const std::atomic<bool>* interrupted) {
  return std::make_unique<Ray>(program, python, interrupted);
}

}  // namespace faultline::triage
