// A launch whose result was wrong, looked at while everything it read and wrote is still there: which element and bits,
// whether it comes again, here and elsewhere, and what that speaks for. The host's answer is computed a second time
// before anybody is accused.
#pragma once

#include <functional>
#include <optional>

#include "base/json.h"
#include "screen/check.h"

namespace faultline::screen {

// Of a batch: one run of a check.
struct Launched {
  at::Tensor result;
  int64_t turn = 0, chunk = 0;
  int64_t digest = 0;  // what the result has
};

struct Tries {
  int64_t tries = 0, wrong = 0, same = 0;  // same: wrong with the very bytes that were wrong before
};

enum class Suspect { kCompute, kMemory, kTransfer, kHost, kUnknown };
const char* suspect_name(Suspect suspect);

struct Failure {
  std::string check, operation, dtype, shape, pattern, when;
  Group group = Group::kProduct;
  int64_t launch = 0;  // of this check, from 0
  int64_t wrong_elements = 0;
  int64_t element = -1, row = -1, column = -1;  // the first wrong one; -1: none is wrong any more
  int64_t tile_row = -1, tile_column = -1;      // of 128 x 128
  int64_t lane = -1;                            // among 32 neighbours
  int64_t matrix = 0;                           // of a batched product
  uint64_t expected = 0, observed = 0;          // its bits
  uint64_t changed_bits = 0;                    // OR over all wrong elements
  int width = 0;                                // of an element, in bits
  std::string stage;                            // of a copy: where it was wrong first; of memory: which chunk
  Tries again, elsewhere;
  std::string elsewhere_is;  // "core 3", "the same tiles at other places of the grid"; "": not tried
  std::vector<std::string> broken_inputs;
  Suspect suspect = Suspect::kUnknown;
  std::string certainty;  // sure, likely, open
  std::string sentence;
  std::optional<int> core;
};

// Runs the check so often on another core and says what came out.
using Elsewhere = std::function<std::optional<Tries>(const Check& check, const Launched& wrong, std::string& where)>;

Failure examine(Check& check, const Launched& wrong, const Elsewhere& elsewhere);
// An operand that is no longer what was written, though no result has shown it.
Failure changed_input(const Check& check, const Input& input);
Json to_json(const Failure& failure);

// The same memory as integers; the one with this bit alone set.
at::Tensor bits_of(const at::Tensor& contiguous);
int64_t one_bit(int64_t element_size, int bit);

// The digest of a result on its device, waited for.
int64_t digest_now(const at::Tensor& result);
Tries try_again(Check& check, const Launched& wrong, int64_t times);

}  // namespace faultline::screen
