// Recorded forwards in a folder, for machines that never meet: what docs/compare.md describes. The writer is a sink of
// the one recorder (recorder.h) and keeps of each call what its detail says; the reader gives calls that can be judged
// and made again. Nothing in a trace is executed on reading, and afterwards only operators of our own lists, with
// arguments that fit their schemas: a trace from a stranger is only data.
#pragma once

#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "diagnose/compare/packed.h"
#include "diagnose/compare/sampling.h"
#include "diagnose/compare/token_rows.h"
#include "diagnose/recorder.h"

namespace faultline::diagnose {

inline constexpr const char* kTraceFormat = "faultline-trace-2";
enum class Detail { kDigest, kSample, kFull };
Detail detail_by_name(const std::string& name);  // UsageError
std::string detail_name(Detail detail);
std::string type_name(at::ScalarType type);  // "bf16"

struct NamedWeight {
  std::string name;   // of a part of a fused one: the part's
  at::Tensor tensor;  // (out, in), …
};

struct PackedWeight {
  at::Tensor packed, original;  // what an operator is given, and the weight as it was
};

struct TraceOptions {
  Detail detail = Detail::kSample;
  int64_t most_bytes = int64_t{4} << 30;  // on disk; then calls are listed and their tensors left out
  int64_t most_forwards = 0;              // 0: all
  Json header = Json::object();           // engine, torch, role, rank, world, tokenizer, device
  std::vector<NamedWeight> weights;
  std::vector<PackedWeight> packed;
};

class TraceWriter final : public CallSink {
 public:
  // Begins a trace, or goes on with one that was cut off, of the same model and detail. UsageError where the folder
  // holds a whole trace or another model's.
  TraceWriter(const std::filesystem::path& folder, TraceOptions options);

  // tokens: (B, T) or (N); mask, positions: undefined where the engine has none. false: enough forwards were recorded.
  bool begin_forward(const std::string& kind, const at::Tensor& tokens, const at::Tensor& mask,
                     const at::Tensor& positions);
  void end_forward();
  // What belongs to the last forward and runs after its end, on some of its rows: so many from the first one on; -1: on
  // the last row of each sequence, or others. false: it was not recorded.
  bool go_on_with_forward(int64_t first_row = -1, int64_t rows = 0);
  void finish();  // what was written is a whole trace from now on
  int64_t calls() const { return calls_; }
  bool is_in_forward() const { return in_forward_; }

  bool wants(const OperatorFacts& facts) const override;
  void take(const OperatorFacts& facts, RecordedCall&& call) override;

 private:
  struct Pending {  // a digest that the device has not said yet
    std::size_t line;
    Json::json_pointer where;
    at::Tensor digest;
  };
  struct Kept {
    std::string id;
    at::Tensor original;  // so that its address means no other tensor
  };
  void go_on();
  Json described(const at::Tensor& x) const;
  Json stored(const at::Tensor& x, bool is_fresh, bool is_always = false);
  Json argument(const c10::IValue& value, bool is_fresh);
  Json line_of(const OperatorFacts& facts, const RecordedCall& call) const;
  void list(const OperatorFacts& facts, const RecordedCall& call);
  void take_digest(const OperatorFacts& facts, const RecordedCall& call);
  void take_chances(const RecordedCall& call);
  std::vector<int64_t> columns_of(const std::string& place, int64_t count) const;
  void flush();
  void wait_for_part();

  std::filesystem::path folder_;
  TraceOptions options_;
  std::unordered_map<const void*, std::string> names_;  // of weights, by address
  std::map<std::string, int64_t> outputs_;              // of weights, by name
  std::map<std::pair<const void*, std::size_t>, std::pair<std::string, at::Tensor>> sampled_weights_;  // id, columns
  std::vector<at::Tensor> weights_;  // whose addresses stand there
  PackedWeights packed_;
  Pages pages_;

  std::vector<Json> lines_;
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  std::map<std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, int>, Kept> kept_;
  std::map<std::string, std::string> whole_weights_;  // name -> id
  std::vector<Pending> pending_;
  std::pair<at::Tensor, at::Tensor> last_input_;  // of a product, and its digest
  TokenRows rows_;
  std::future<int64_t> part_;          // being written; -> the size of its lines
  RowChoice choice_, forward_choice_;  // of what runs now, of the forward
  int64_t first_row_ = -1;             // of what runs after a forward
  bool in_forward_ = false, bounded_ = false, is_enough_ = false;
  int64_t calls_ = 0, forwards_ = 0, parts_ = 0, ids_ = 0, bytes_ = 0, waiting_bytes_ = 0;
};

struct TracedCall {
  RecordedCall call;  // of a sample: of the part that was kept
  int64_t number = 0, forward = 0;
  std::string family, device;
  Json sample;                              // null: all of it
  std::vector<int64_t> shape;               // of the first result, as it was
  std::string input_digest, result_digest;  // hexadecimal; empty: none
  int64_t first_row = -1;                   // of the forward's, where it read some of them
  bool is_stored = false;
};

struct TracedForward {
  std::string kind;
  TokenRows rows;
  at::Tensor chances;  // (rows) fp32: log-probability of the token that follows; undefined: not recorded
};

struct Trace {
  std::filesystem::path path;
  Json header;
  std::vector<TracedForward> forwards;
  std::vector<TracedCall> calls;
  bool bounded = false;

  Detail detail() const { return detail_by_name(header.at("detail").get<std::string>()); }
  std::string said(const char* key) const;
};

// UsageError where the path holds no trace or one that was cut off, RuntimeFailure where it is damaged.
Trace read_trace(const std::filesystem::path& path);
bool is_trace(const std::string& name);  // and no device

}  // namespace faultline::diagnose
