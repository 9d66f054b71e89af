// For tests: a forked child that runs a function and is killed, or waited for. The child reports through a pipe, in
// raw 8-byte numbers: what arrived was reported before the kill.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "base/error.h"

namespace faultline {

class ChildProcess {
 public:
  using Report = std::function<void(uint64_t)>;

  explicit ChildProcess(const std::function<void(const Report& report)>& work) {
    int ends[2];
    FL_ASSERT(::pipe(ends) == 0);
    id_ = ::fork();
    FL_ASSERT(id_ >= 0);
    if (id_ == 0) run(work, ends[1]);
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    kill();
    ::close(pipe_);
  }

  pid_t id() const { return id_; }

  // Waits for the next report; false when the child is gone and all its reports were read.
  bool next(uint64_t& value) const { return ::read(pipe_, &value, sizeof value) == sizeof value; }

  std::vector<uint64_t> reports() const {
    std::vector<uint64_t> all;
    for (uint64_t value = 0; next(value);) all.push_back(value);
    return all;
  }

  // Kills it some microseconds after so many reports (on a slow disk a delay alone would always hit the start) and
  // returns all it reported.
  std::vector<uint64_t> kill_after(size_t count, unsigned microseconds) {
    std::vector<uint64_t> all;
    for (uint64_t value = 0; all.size() < count && next(value);) all.push_back(value);
    ::usleep(microseconds);
    kill();
    for (uint64_t value = 0; next(value);) all.push_back(value);
    return all;
  }

  void kill() {
    if (!waited_) ::kill(id_, SIGKILL);
    wait();
  }

  // The exit status, or -1 when a signal ended it. 0: the function returned; 1: it threw.
  int wait() {
    if (!waited_) ::waitpid(id_, &status_, 0);
    waited_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }

 private:
  [[noreturn]] static void run(const std::function<void(const Report& report)>& work, int end) {
    try {
      work([end](uint64_t value) { FL_ASSERT(::write(end, &value, sizeof value) == sizeof value); });
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }

  pid_t id_ = -1;
  int pipe_ = -1;
  int status_ = 0;
  bool waited_ = false;
};

}  // namespace faultline
