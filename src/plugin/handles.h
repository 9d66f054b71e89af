// What Python holds by a number: objects that are opened, found from any thread, and closed. It lives until the process
// ends, because threads of Python may outlive static destructors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.h"

namespace faultline::plugin {

template <class T>
class Handles {
 public:
  explicit Handles(std::string what) : what_(std::move(what)) {}

  int64_t add(std::shared_ptr<T> made) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_[++last_] = std::move(made);
    return last_;
  }
  std::shared_ptr<T> find(int64_t handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(handle);
    if (found == open_.end()) throw UsageError("this " + what_ + " is not open, or was closed");
    return found->second;
  }
  void close(int64_t handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_.erase(handle);
  }

 private:
  std::string what_;
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<T>> open_;
  int64_t last_ = 0;
};

}  // namespace faultline::plugin
