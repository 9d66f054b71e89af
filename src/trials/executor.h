// Where trials run. A task is a process of this program with a folder of its own: either one trial, asked and answered
// by files, or a worker that takes trials as lines on its standard input and answers each with a line. An executor runs
// so many tasks at a time: in this process, as processes of this machine, or on a Ray cluster (ray_executor.h). It says
// what tasks answer and how they end; what that means for a campaign is the runner's part (runner.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace faultline::trials {

struct Task {
  std::filesystem::path folder;        // exists; log.txt comes to lie in it, and on a cluster it travels
  std::vector<std::string> arguments;  // of the program; {folder} stands for where the folder is there
  std::string input;                   // for standard input
  bool answers = false;                // standard output is a line for each trial; else it goes to the log
  std::vector<std::string> wanted;     // files of the folder that come back from a cluster, where they are there
  std::string directory;               // on a cluster: where the program runs; "": in the folder
  std::map<std::string, std::string> variables;
  int processors = 1;
  double timeout = 0;  // seconds; 0: none
  double grace = 0;    // on this machine: seconds from SIGTERM to SIGKILL where it is ended; 0: SIGKILL at once
};

struct TaskEnd {
  int status = 0;  // as waitpid tells it
  bool timed_out = false, interrupted = false;
  bool lost = false;  // with the worker or the machine that ran it
  double seconds = 0;
  std::string error;  // it could not be run: a sentence

  bool was_killed() const;  // by somebody else than us
  bool is_good() const;     // exited with status 0
  std::string sentence() const;
};

struct Event {
  int64_t task = 0;
  std::optional<std::string> answer;  // a line, without its end
  std::optional<TaskEnd> end;
};

class Executor {
 public:
  virtual ~Executor() = default;  // ends what still runs
  virtual int slots() const = 0;  // tasks that may run at the same time
  virtual int64_t start(const Task& task) = 0;
  // Whether running tasks take further lines: give() one, and close() when there is none. Where they do not, everything
  // has to be in Task::input.
  virtual bool takes_lines() const { return false; }
  virtual void give(int64_t task, const std::string& line);
  virtual void close(int64_t task);
  // The next thing that happens. An interruption ends every waiting: all tasks that still run are then ended, and this
  // one has `interrupted` in its end.
  virtual Event wait() = 0;
  virtual Json description() const { return nullptr; }  // of a cluster: nodes, slots
};

// Set by Ctrl-C and SIGTERM from the first call on: who waits for trials puts away what it has and ends. A second one
// ends the process.
const std::atomic<bool>* interruption();

// For an error: what the log of a task says after the last "error: ", else its last line.
std::string error_line(const std::filesystem::path& folder);

// serve: from a line to its answer, "" for none. One trial after the other, while somebody waits.
std::unique_ptr<Executor> in_process_executor(std::function<std::string(const std::string& line)> serve);

// Processes of this machine, each in a group of its own that ends with it. They share the processors: OMP_NUM_THREADS
// says how many are there for each, unless somebody has said it.
std::unique_ptr<Executor> local_executor(int slots);

}  // namespace faultline::trials
