// Processes of this program as tasks of a Ray cluster: the one mechanism behind --executor ray, whatever the trials
// are. A task is a folder that travels: what lies in it is sent, the program runs with it on some machine, and what was
// asked for comes back into it. A helper in Python (python/faultline/ray_executor.py) speaks with Ray; we give it
// requests and get answers, a JSON line each, over its standard input and output. Campaigns and their records stay
// here: a cluster only changes where a process runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "record/json_text.h"

namespace faultline {

struct RemoteTask {
  std::filesystem::path folder;        // travels; log.txt comes back into it, and `wanted`
  std::vector<std::string> arguments;  // of the program; {folder} stands for where the folder is there
  std::string input, output;           // names in the folder, of standard input and output; "": none, and the log
  std::vector<std::string> wanted;     // names in the folder; what is not there does not come
  std::string directory;               // where the program runs, on every machine the same; "": in the folder
  std::map<std::string, std::string> variables;
  int processors = 1;
  double timeout = 0;  // seconds; 0: none
};

struct RemoteEnd {
  int status = 0;  // as waitpid tells it
  bool timed_out = false, interrupted = false;
  double seconds = 0;
  std::string error;  // the task could not be run: a sentence
};

class RayCluster {
 public:
  // Starts the helper with `python` and waits until it is connected to the cluster that RAY_ADDRESS names (else one of
  // its own on this machine, for nobody else). `program` must exist under the same path on every machine. `interrupted`
  // ends every waiting. RuntimeFailure: no Ray, no cluster.
  RayCluster(const std::filesystem::path& program, const std::string& python, const std::atomic<bool>* interrupted);
  ~RayCluster();  // leaves the cluster; tasks that still run are ended
  RayCluster(const RayCluster&) = delete;
  RayCluster& operator=(const RayCluster&) = delete;

  int slots() const { return slots_; }  // tasks of one processor that run at the same time
  int64_t nodes() const { return nodes_; }
  int64_t lost() const { return lost_; }  // tasks that were run again because their worker or machine was lost
  Json description() const { return {{"nodes", nodes()}, {"slots", slots()}, {"lost", lost()}}; }

  // Any number of threads may start tasks and wait for their own; wait_any is for the one thread that started all.
  int64_t start(const RemoteTask& task);
  RemoteEnd wait(int64_t task);
  std::pair<int64_t, RemoteEnd> wait_any();

 private:
  void send(const Json& message);
  void read_lines();
  Json next_answer(std::optional<int64_t> number);
  RemoteEnd end_of(const Json& answer);

  pid_t helper_ = -1;
  int to_ = -1, from_ = -1;
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

}  // namespace faultline
