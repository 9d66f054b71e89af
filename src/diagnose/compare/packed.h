// vLLM's kernels as plain calls. A product on a CPU reads its weight packed behind a handle, attention reads keys and
// values from pages, whose layout on a CPU is the kernel's own. A trace keeps neither handle nor pages: the weight as
// it was before it was packed, and the keys and values that each query sees, in order. So a call is judged from what
// the model meant it to read, and a fault in packing, in writing a page or in finding it is the operator's own.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <unordered_map>

#include "diagnose/compare/sampling.h"

namespace faultline::diagnose {

// By the address of the packed tensor, or of the one that holds its handle.
class PackedWeights {
 public:
  void add(const at::Tensor& packed, const at::Tensor& original);
  // The call with its weight as it was; nothing where it is not known.
  std::optional<RecordedCall> unpacked(const RecordedCall& call) const;

 private:
  struct One {
    at::Tensor packed, original;  // packed: so that its address means no other tensor
  };
  std::unordered_map<const void*, One> all_;
};

// Keys and values by page and place, as they were handed to the operator that writes them.
class Pages {
 public:
  void note(const RecordedCall& write);
  // Arguments of plain attention, {q, k, v, mask, scale}, with one result: (1, heads, rows, D). all: every row and
  // head, else chosen rows and two heads. Nothing where the call has more to it (caps, sinks, slopes), or keys were
  // written before the recording began.
  std::optional<Sampled> plain(const RecordedCall& attention, const RowChoice& choice, bool all) const;

 private:
  struct Cache {
    at::Tensor original, keys, values, known;  // (slots, heads, D), (slots)
  };
  std::map<const void*, Cache> caches_;
};

bool is_packed_product(const std::string& name);

}  // namespace faultline::diagnose
