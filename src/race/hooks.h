// The places in the loop where something other than the loop may touch a buffer: the injector, which is part of the
// tool, and pause points, at which a rank stands still while somebody else (another thread, a debugger) writes into
// live memory. The loop names the place and hands over the buffer; it does not look whether anything happened.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "race/config.h"

namespace faultline::race {

struct Site {
  Place place = Place::kCommOutput;
  int64_t iteration = 0;
  int64_t layer = -1;
  int rank = 0;
  bool operator<(const Site& other) const;
};

// What an older or other buffer of this place would hold; for stale data.
using StaleContent = std::function<at::Tensor()>;

class Hook {
 public:
  virtual ~Hook() = default;
  virtual void visit(const Site& site, const at::Tensor& buffer, const StaleContent& stale) = 0;
  virtual bool skips(const Site&) { return false; }  // whether the rank leaves out the collective of this place
};

// Thrown by an injected exit: the rank ends without a word to its peers.
class RankExit : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Injector : public Hook {
 public:
  // `cancelled` ends a delay early, when the run has ended without this rank.
  Injector(std::vector<Injection> injections, std::shared_ptr<std::atomic<bool>> cancelled, bool own_process);
  void visit(const Site& site, const at::Tensor& buffer, const StaleContent& stale) override;
  bool skips(const Site& site) override;
  uint64_t planted() const { return planted_; }

 private:
  bool strikes(const Injection& injection, const Site& site, size_t index) const;
  void plant(const Injection& injection, const Site& site, const at::Tensor& buffer, const StaleContent& stale);

  std::vector<Injection> injections_;
  std::shared_ptr<std::atomic<bool>> cancelled_;
  bool own_process_;
  std::atomic<uint64_t> planted_{0};
};

// A rank that comes to a site asked for waits there, its buffer's address published, until it is released.
class PausePoints : public Hook {
 public:
  struct Pause {
    Site site;
    void* data = nullptr;
    int64_t bytes = 0;
    int element_size = 0;
  };
  void ask(const Site& site);
  bool await(const Site& site, Pause& pause, double seconds);  // false: nobody came
  void release(const Site& site);
  void visit(const Site& site, const at::Tensor& buffer, const StaleContent& stale) override;

 private:
  enum class Stage { kAsked, kPaused, kReleased };
  struct Entry {
    Stage stage = Stage::kAsked;
    Pause pause;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Site, Entry> entries_;
};

}  // namespace faultline::race
