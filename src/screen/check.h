// One check of a screen: work for a device whose result is known to the bit before it runs. A check is made from a
// seed; run() queues it on the current stream and never waits; answer() computes the right result again, from the seed,
// with integers on the host. The decision that shaped it: everything is judged by a digest of the result's bytes, on
// the device, one number a launch, so that a thousand launches cost the host one wait and the device a few per cent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace faultline::screen {

enum class Group { kProduct, kAttention, kNorm, kReduction, kGather, kCopy, kMemory };
inline constexpr int kGroups = 7;
const char* group_name(Group group);

enum class Load { kTraining, kInference, kMemory, kAll };
const char* load_name(Load load);

// Called with the memory under test after it was written and before it is judged: a canary flips a bit there.
using Disturb = std::function<void(const at::Tensor&)>;

struct Input {
  std::string name;
  at::Tensor tensor;
  int64_t digest = 0;  // of what it must hold, computed on the host
};

// Where data came by on its way: of a chain of copies, in their order.
struct Stage {
  std::string name;  // "copy 3, host to device"
  at::Tensor tensor;
};

struct Check {
  std::string name;  // "product bf16 4096x4096x4096 NT wide"
  Group group = Group::kProduct;
  std::string operation;  // aten's name of what is called
  std::string dtype, shape, pattern;
  // What one launch tests.
  int64_t products = 0;  // matrices
  int64_t elements = 0;  // results that are judged
  int64_t bytes = 0;     // read and written
  double operations = 0;
  double weight = 1;  // its share of the time, relative to the others

  std::function<at::Tensor(const Disturb&)> run;   // contiguous; every call gives memory of its own, or a chain's last
  std::function<at::Tensor(int64_t turn)> answer;  // on the CPU
  // Of the answers, one a turn. A chain that writes the same buffers again has two turns with other bytes: what was
  // right before is wrong now, so nothing that was left unwritten looks right.
  std::vector<int64_t> digests;
  int64_t turn = 0;  // of the last run()
  std::vector<Input> inputs;
  std::function<std::vector<Stage>()> stages;  // of copies
  std::function<at::Tensor()> elsewhere;       // the same results, computed by other parts of the device; of products
  int64_t most_in_batch = 1 << 20;             // launches whose evidence is all there when the batch is judged
  std::shared_ptr<struct MemoryUnderTest> memory;
};

// A part of the device's memory that holds a known pattern while everything else goes on.
struct MemoryUnderTest {
  struct Chunk {
    at::Tensor words;  // fp32, contiguous
    int64_t pass = 0;  // which pattern it holds
  };
  std::vector<Chunk> chunks;
  int64_t next = 0, last = 0;  // the chunk that is looked at next; that was looked at last
  int64_t asked = 0, bytes = 0;
  std::vector<int64_t> looked;  // at, since write_looked()
  uint64_t seed = 0;
  void write_looked();                     // the next pattern into every chunk that was looked at and has been judged
  at::Tensor wanted(int64_t chunk) const;  // what it must hold, on the CPU
};

struct WorkSpec {
  at::Device device = at::kCPU;
  Load load = Load::kAll;
  uint64_t seed = 0;
  bool large = false;           // shapes that fill a GPU; else those of one core
  int64_t memory_bytes = 0;     // to hold patterns in; 0: none
  int64_t copy_bytes = 0;       // of one buffer of a chain of copies; 0: by size
  std::vector<int> peers = {};  // CUDA devices that copies go to
};

struct WorkList {
  std::vector<std::unique_ptr<Check>> checks;
  std::vector<std::string> not_tested;  // sentences: what this device or torch does not have
};
WorkList work_list(const WorkSpec& spec);

// The parts of the list. Each throws c10::Error where the device or torch cannot do it.
struct ProductSpec {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  at::ScalarType dtype = at::kBFloat16;
  std::string layout = "NN";       // T: the operand lies transposed
  std::string pattern = "random";  // random, wide, alternating
  bool tf32 = false;
};
std::unique_ptr<Check> product_check(const ProductSpec& spec, const at::Device& device, uint64_t seed);

struct AttentionSpec {
  int64_t batch = 1, heads = 1, queries = 0, keys = 0, size = 64;
  at::ScalarType dtype = at::kBFloat16;
  bool causal = false;
};
std::unique_ptr<Check> attention_check(const AttentionSpec& spec, const at::Device& device, uint64_t seed);

// kind: rms_norm, layer_norm, softmax, sum, amax, addcmul, swiglu, gather
std::unique_ptr<Check> rows_check(const std::string& kind, int64_t rows, int64_t columns, at::ScalarType dtype,
                                  const at::Device& device, uint64_t seed);

// way: "device" (a chain on it), "host" (to it and back), "peer N" (to cuda:N and back)
std::unique_ptr<Check> copy_check(const std::string& way, int64_t bytes, const at::Device& device, uint64_t seed);
std::unique_ptr<Check> memory_check(int64_t bytes, const at::Device& device, uint64_t seed);

// While one lives, results of products are rounded once: sums of parts of K are kept in fp32 on a GPU, and fp32 is no
// bf16 on a CPU. For all threads together, as torch's switches are; the last one puts back what was there.
class ExactSums {
 public:
  ExactSums();
  ~ExactSums();
  ExactSums(const ExactSums&) = delete;
  ExactSums& operator=(const ExactSums&) = delete;
};

int64_t host_digest(const at::Tensor& on_cpu);
const char* short_dtype(at::ScalarType type);

}  // namespace faultline::screen
