// Copies and memory. A chain of copies passes random bytes from buffer to buffer and judges the last one: a byte that
// any copy spoilt is still wrong there, every copy but the last costs no judgement, and the buffers in between, which
// are still there, say which copy it was. Memory under test holds a pattern from one visit to the next while everything
// else goes on: a visit compares it with what was written at the last one; once that is judged, the next pattern is
// written and inverted twice, so that every cell has held and lost both values. Patterns are random words and, in turn,
// words of zeros, ones, 0101…, 1010… and a walking bit.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "numeric/apply.h"
#include "race/patterns.h"
#include "screen/check.h"

namespace faultline::screen {
namespace {

constexpr int kChain = 8;
constexpr std::size_t kDisturbed = 5;  // of the chain: one that lies on the device on every way
constexpr int64_t kChunk = int64_t{1} << 30;
constexpr uint32_t kPoison = 0x5EEDDEAD;

numeric::Pattern random_words(uint64_t seed, int64_t chunk, int64_t pass) {
  race::PatternPlace place;
  place.seed = seed, place.iteration = pass, place.layer = chunk;
  return race::element_pattern(numeric::PatternForm::kRaw, at::kFloat, place);
}

at::Tensor host_buffer(int64_t bytes, bool pinned) {
  return at::empty({bytes / 4}, at::TensorOptions(at::kFloat).pinned_memory(pinned));
}

}  // namespace

std::unique_ptr<Check> copy_check(const std::string& way, int64_t bytes, const at::Device& device, uint64_t seed) {
  auto check = std::make_unique<Check>();
  const bool over_host = way == "host";
  at::Device far = device;
  if (way.starts_with("peer "))
    far = at::Device(device.type(), static_cast<c10::DeviceIndex>(std::stoi(way.substr(5))));
  check->group = Group::kCopy, check->operation = "aten::copy_", check->dtype = "bytes", check->pattern = "random";
  check->shape = fmt::format("{} MiB", bytes >> 20);
  check->name = fmt::format("copy {} {}", over_host ? "host to device and back" : way, check->shape);
  check->most_in_batch = 1;
  const auto bytes_of = [bytes, seed](int64_t turn) {
    const at::Tensor words = host_buffer(bytes, false);
    race::fill(words, random_words(seed, turn, 1));
    return words;
  };
  std::array<at::Tensor, 2> sources;
  for (int64_t turn = 0; turn < 2; ++turn) {
    const at::Tensor words = bytes_of(turn);
    check->digests.push_back(host_digest(words));
    sources[static_cast<std::size_t>(turn)] = words.to(device, /*non_blocking=*/false, /*copy=*/true);
    check->inputs.push_back(
        {fmt::format("source {}", turn + 1), sources[static_cast<std::size_t>(turn)], check->digests.back()});
  }
  std::vector<at::Tensor> buffers;
  for (int i = 0; i < kChain; ++i) {
    const bool away = i % 2 == 0 && i + 1 < kChain;
    if (over_host && away)
      buffers.push_back(host_buffer(bytes, device.is_cuda()));
    else
      buffers.push_back(at::empty_like(sources[0], at::TensorOptions(away ? far : device)));
  }
  check->run = [self = check.get(), sources, buffers](const Disturb& disturb) {
    self->turn ^= 1;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].copy_(i == 0 ? sources[static_cast<std::size_t>(self->turn)] : buffers[i - 1], /*non_blocking=*/true);
      if (disturb && i == kDisturbed) disturb(buffers[i]);
    }
    return buffers.back();
  };
  check->answer = bytes_of;
  check->stages = [buffers, over_host] {
    std::vector<Stage> stages;
    for (std::size_t i = 0; i < buffers.size(); ++i)
      stages.push_back({fmt::format("copy {}{}", i + 1,
                                    !over_host        ? ""
                                    : i % 2 == 1      ? ", host to device"
                                    : i + 1 == kChain ? ", on the device"
                                                      : ", device to host"),
                        buffers[i]});
    return stages;
  };
  check->elements = bytes / 4;
  check->bytes = kChain * bytes;
  return check;
}

namespace {

// Which pattern a chunk holds in a pass: random words in every other one.
constexpr std::array<uint32_t, 4> kConstants = {0u, 0xFFFFFFFFu, 0x55555555u, 0xAAAAAAAAu};
bool is_random(int64_t pass) { return pass % 2 == 1; }
uint32_t constant_of(int64_t pass) {
  const auto which = static_cast<uint64_t>(pass / 2) % (kConstants.size() + 1);
  return which < kConstants.size() ? kConstants[which] : 1u << (static_cast<uint64_t>(pass / 2) % 32);
}

// A row as the pattern's check leaves it: all zeros where every word is right.
at::Tensor look(const MemoryUnderTest::Chunk& chunk, int64_t index, uint64_t seed) {
  const at::Tensor row = at::zeros({numeric::kPatternCheckWords}, chunk.words.options().dtype(at::kLong));
  if (is_random(chunk.pass)) {
    race::check(chunk.words, random_words(seed, index, chunk.pass), kPoison, row);
    return row;
  }
  // One read: where the smallest and the largest of all words are the right one, all are.
  const auto [low, high] = at::aminmax(chunk.words.view(at::kInt));
  const auto wanted = static_cast<int32_t>(constant_of(chunk.pass));
  row[0].copy_(at::bitwise_or(low.ne(wanted), high.ne(wanted)));
  return row;
}

void write_pattern(const at::Tensor& words, int64_t index, int64_t pass, uint64_t seed) {
  if (is_random(pass))
    race::fill(words, random_words(seed, index, pass));
  else
    words.view(at::kInt).fill_(static_cast<int32_t>(constant_of(pass)));
}

void write(MemoryUnderTest::Chunk& chunk, int64_t index, uint64_t seed) {
  write_pattern(chunk.words, index, ++chunk.pass, seed);
  at::Tensor bits = chunk.words.view(at::kInt);
  bits.bitwise_not_();
  bits.bitwise_not_();
}

}  // namespace

at::Tensor MemoryUnderTest::wanted(int64_t chunk) const {
  const Chunk& one = chunks[static_cast<std::size_t>(chunk)];
  at::Tensor words = host_buffer(static_cast<int64_t>(one.words.nbytes()), false);
  write_pattern(words, chunk, one.pass, seed);
  return words;
}

void MemoryUnderTest::write_looked() {
  for (const int64_t index : looked) write(chunks[static_cast<std::size_t>(index)], index, seed);
  looked.clear();
}

std::unique_ptr<Check> memory_check(int64_t bytes, const at::Device& device, uint64_t seed) {
  auto check = std::make_unique<Check>();
  check->group = Group::kMemory, check->operation = "memory", check->dtype = "bytes";
  check->pattern = "random, 0, 1, 01, 10, walking bit";
  auto memory = std::make_shared<MemoryUnderTest>();
  memory->asked = bytes;
  const int64_t chunk = std::min(kChunk, std::max<int64_t>(bytes / 4, 1 << 20)) / 16 * 16;
  memory->seed = seed;
  while (memory->bytes + chunk <= bytes) {
    try {
      memory->chunks.push_back({at::empty({chunk / 4}, at::TensorOptions(device).dtype(at::kFloat))});
    } catch (const c10::OutOfMemoryError&) {
      break;  // others use it; what was asked and what was had stand in the record
    }
    memory->bytes += chunk;
  }
  if (memory->chunks.empty())
    throw RuntimeFailure(fmt::format("memory: not even {} MiB could be had beside what others use", chunk >> 20));
  const auto chunks = static_cast<int64_t>(memory->chunks.size());
  for (int64_t i = 0; i < chunks; ++i) write(memory->chunks[static_cast<std::size_t>(i)], i, seed);
  check->memory = memory;
  check->shape = fmt::format("{} x {} MiB", chunks, chunk >> 20);
  check->name = fmt::format("memory {}", check->shape);
  check->most_in_batch = chunks;
  check->run = [memory, seed, chunks](const Disturb& disturb) {
    const int64_t index = memory->last = memory->next;
    memory->next = (index + 1) % chunks;
    memory->looked.push_back(index);
    const MemoryUnderTest::Chunk& chunk = memory->chunks[static_cast<std::size_t>(index)];
    if (disturb) disturb(chunk.words);
    return look(chunk, index, seed);
  };
  const at::Tensor right = at::zeros({numeric::kPatternCheckWords}, at::kLong);
  check->digests = {host_digest(right)};
  check->answer = [right](int64_t) { return right.clone(); };
  check->elements = chunk / 4;
  check->bytes = 6 * chunk;
  return check;
}

int64_t host_digest(const at::Tensor& on_cpu) {
  FL_ASSERT(on_cpu.is_cpu());
  int64_t state[numeric::kDigestStateWords] = {};
  numeric::digest_into(on_cpu, state);
  return state[0];
}

}  // namespace faultline::screen
