// Errors have two audiences. A mistake of the user (a bad parameter, an unknown key, a missing file) is thrown as one
// of the types below: a sentence that names the place, what was wanted, what came, and the remedy; the program turns it
// into the exit code the type carries. A mistake of ours is an FL_ASSERT.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/complaint.h"

namespace faultline {

enum class ExitCode : int {
  kOk = 0,        // fine, healthy, passed
  kFound = 1,     // a fault, a corruption or a failed bar was found
  kRuntime = 2,   // error at run time: disk full, device lost, file unreadable
  kEvidence = 3,  // fail closed: a fault is claimed but its evidence is missing
  kUsage = 64,    // usage or recipe error
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

class UsageError : public Error {
 public:
  explicit UsageError(const std::string& sentence) : Error(ExitCode::kUsage, sentence) {}
};

class RuntimeFailure : public Error {
 public:
  explicit RuntimeFailure(const std::string& sentence) : Error(ExitCode::kRuntime, sentence) {}
};

class EvidenceError : public Error {
 public:
  EvidenceError(ComplaintCode code, const std::string& sentence)
      : Error(ExitCode::kEvidence, sentence), complaints_{{code, "", "", sentence}} {}
  // `opening` says what cannot be proven: "evidence missing: ".
  EvidenceError(const std::string& opening, std::vector<Complaint> complaints)
      : Error(ExitCode::kEvidence, opening + joined_sentences(complaints)), complaints_(std::move(complaints)) {}
  const std::vector<Complaint>& complaints() const { return complaints_; }

 private:
  std::vector<Complaint> complaints_;
};

// Thrown by FL_ASSERT: a bug of ours. Nothing catches it but main, which asks for a report.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace faultline

#define FL_ASSERT(condition)                                                         \
  do {                                                                               \
    if (!(condition)) ::faultline::assertion_failed(#condition, __FILE__, __LINE__); \
  } while (false)
