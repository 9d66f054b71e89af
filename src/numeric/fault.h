// What a person writes under `what:` — a fault kind with its parameters — as a plain struct. The catalogue describes
// every kind once: its formula for `explain`, its parameters with ranges for strict parsing and the JSON Schema.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/schema.h"
#include "numeric/arguments.h"
#include "numeric/format_table.h"

namespace faultline::numeric {

enum class BitField : uint8_t { kAny, kSign, kExponent, kMantissa };

// accumulate: a sum over K in chunks, each added to an accumulator of this dtype.
enum class SumOrder : uint8_t { kForward, kReverse, kTree };
struct AccumulateSpec {
  Dtype accumulator = Dtype::kBFloat16;
  int64_t chunk = 64;
  SumOrder order = SumOrder::kForward;
  std::optional<int64_t> drop;  // number of the chunk that is left out
};

// approximate: a function by a table, straight pieces or a polynomial.
enum class ApproximatedFunction : uint8_t { kSilu, kGelu, kSigmoid, kTanh, kExp, kRsqrt };
enum class ApproximationMethod : uint8_t { kTable, kPiecewise, kPolynomial };
struct ApproximateSpec {
  ApproximatedFunction function = ApproximatedFunction::kSilu;
  ApproximationMethod method = ApproximationMethod::kPiecewise;
  int64_t size = 64;  // entries, knots, or the polynomial's degree
};

struct FaultSpec {
  FaultKind kind = FaultKind::kZero;
  double strength = 0;  // the leading parameter: strength, threshold, margin or limit, probability, rate
  double factor = 1;    // spike, nondeterministic
  Reference reference = Reference::kNone;
  Axis axis = Axis::kToken;
  bool relative = false;  // deadzone, saturate, offset: strength counts in units of the reference
  uint32_t mode = 0;      // TruncateMode, NondeterministicMode
  int64_t bits = 0;       // truncate: mantissa bits kept
  std::optional<int64_t> bit;
  BitField field = BitField::kAny;
  int64_t count = 0;   // bitflip: elements a call; swap: pairs
  int64_t length = 1;  // swap: elements of a region
  bool bit_value = false;
  FormatArguments format;
  std::string format_name;
  std::shared_ptr<const ProfileTable> profile;
  AccumulateSpec accumulate;
  ApproximateSpec approximate;
};

struct ParameterInfo {
  std::string name;
  Schema schema;
  std::optional<Node> default_value;
  std::string meaning;
  bool required = false;
  std::function<bool(const Node&)> applies = {};  // by the parameters before it; empty: always
  std::string otherwise = {};                     // the complaint where it is given and does not apply
};

struct KindInfo {
  FaultKind kind;
  std::string name;
  std::string formula;
  std::string summary;
  std::vector<ParameterInfo> parameters;
  std::string example;  // the short form of the command line
  std::string note;
};

std::span<const KindInfo> kind_infos();
const KindInfo& kind_info(FaultKind kind);
std::string_view kind_name(FaultKind kind);

// `what:` — a map chosen by `kind`.
Schema fault_schema();
FaultSpec read_fault(const Node& what);  // a node that fault_schema() has validated; reads a profile's file

}  // namespace faultline::numeric
