// Attention whose answer is a row of the values. Keys are words of signs, each key another one, times 8; a query is the
// word of one key. Its score is 64 times the number of signs that agree less those that do not, over the root of the
// head size: every other key lies so far below that exp of the difference is 0 in fp32, the chance of the one key is 1,
// and the result is its value to the bit, whatever the kernel's order, blocks or rescaling. Two words that are too
// much alike are refused when they are drawn, so this holds for every seed.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "screen/check.h"

namespace faultline::screen {
namespace {

constexpr double kGap = 110;  // exp(-110) is below half of fp32's least number
constexpr float kLength = 8;  // of every coordinate of a key

struct Word {
  uint64_t bits[2];
};

int agreeing(const Word& a, const Word& b, int64_t size) {
  const int different = std::popcount(a.bits[0] ^ b.bits[0]) + (size > 64 ? std::popcount(a.bits[1] ^ b.bits[1]) : 0);
  return static_cast<int>(size) - different;
}

std::vector<Word> words_of(const AttentionSpec& spec, uint64_t seed) {
  const double step = 2 * kLength * kLength / std::sqrt(static_cast<double>(spec.size));  // a sign that agrees no more
  const int most = static_cast<int>(static_cast<double>(spec.size) - kGap / step);
  std::vector<Word> words;
  for (uint64_t draw = 0; static_cast<int64_t>(words.size()) < spec.keys; ++draw) {
    const Word word = {{mix64(seed, 2 * draw), mix64(seed, 2 * draw + 1)}};
    bool apart = true;
    for (const Word& other : words) apart = apart && agreeing(word, other, spec.size) <= most;
    if (apart) words.push_back(word);
    FL_ASSERT(draw < static_cast<uint64_t>(8 * spec.keys + 64));
  }
  return words;
}

struct Attention {
  at::Tensor query, key, value, answer;  // (B, H, Tq, D), (B, H, Tk, D) twice, (B, Tq, H, D)
};

// Which key a query means: with a causal mask one that it sees. Queries stand at the end of the keys.
int64_t wanted_key(const AttentionSpec& spec, uint64_t seed, int64_t head, int64_t query) {
  const int64_t seen = spec.causal ? query + 1 : spec.keys;
  return static_cast<int64_t>(mix64(seed ^ 0x6B6579, static_cast<uint64_t>(head * spec.queries + query)) %
                              static_cast<uint64_t>(seen));
}

Attention ask(const AttentionSpec& spec, uint64_t seed) {
  const std::vector<Word> words = words_of(spec, seed);
  const int64_t heads = spec.batch * spec.heads;
  at::Tensor table = at::empty({spec.keys, spec.size}, at::kFloat);
  for (int64_t key = 0; key < spec.keys; ++key)
    for (int64_t d = 0; d < spec.size; ++d)
      table.mutable_data_ptr<float>()[key * spec.size + d] =
          (words[static_cast<std::size_t>(key)].bits[d / 64] >> (d % 64) & 1) != 0 ? kLength : -kLength;
  table = table.to(spec.dtype);
  // Values: all bits of the significand, exponents of eight powers of two. One table, shifted from head to head.
  at::Tensor values = at::empty({spec.keys + heads, spec.size}, at::kFloat);
  for (int64_t i = 0; i < values.numel(); ++i) {
    const uint64_t word = mix64(seed ^ 0x76616C7565, static_cast<uint64_t>(i));
    const float size = std::ldexp(static_cast<float>(128 + word % 128), -8 - static_cast<int>(word >> 8 & 7));
    values.mutable_data_ptr<float>()[i] = (word >> 63) != 0 ? -size : size;
  }
  values = values.to(spec.dtype);
  std::vector<at::Tensor> all_keys, all_values, all_queries, all_answers;
  for (int64_t head = 0; head < heads; ++head) {
    at::Tensor chosen = at::empty({spec.queries}, at::kLong);
    for (int64_t q = 0; q < spec.queries; ++q) chosen.mutable_data_ptr<int64_t>()[q] = wanted_key(spec, seed, head, q);
    const at::Tensor own = values.narrow(0, head, spec.keys);
    all_queries.push_back(table.index_select(0, chosen));
    all_keys.push_back(table), all_values.push_back(own), all_answers.push_back(own.index_select(0, chosen));
  }
  const auto shaped = [&](const std::vector<at::Tensor>& parts, int64_t length) {
    return at::stack(parts).view({spec.batch, spec.heads, length, spec.size});
  };
  return {shaped(all_queries, spec.queries), shaped(all_keys, spec.keys), shaped(all_values, spec.keys),
          shaped(all_answers, spec.queries).transpose(1, 2).contiguous()};
}

}  // namespace

std::unique_ptr<Check> attention_check(const AttentionSpec& spec, const at::Device& device, uint64_t seed) {
  FL_ASSERT(spec.size <= 128 && (!spec.causal || spec.queries == spec.keys));
  auto check = std::make_unique<Check>();
  check->group = Group::kAttention, check->operation = "aten::scaled_dot_product_attention";
  check->dtype = short_dtype(spec.dtype), check->pattern = "one key";
  check->shape = fmt::format("{}x{} heads, {} queries, {} keys of {}{}", spec.batch, spec.heads, spec.queries,
                             spec.keys, spec.size, spec.causal ? ", causal" : "");
  check->name = fmt::format("attention {} {}", check->dtype, check->shape);
  const Attention asked = ask(spec, seed);
  const at::Tensor query = asked.query.to(device), key = asked.key.to(device), value = asked.value.to(device);
  check->inputs = {{"queries", query, host_digest(asked.query)},
                   {"keys", key, host_digest(asked.key)},
                   {"values", value, host_digest(asked.value)}};
  check->digests = {host_digest(asked.answer)};
  check->answer = [spec, seed](int64_t) { return ask(spec, seed).answer; };
  const bool causal = spec.causal;
  check->run = [query, key, value, causal](const Disturb& disturb) {
    // Flash kernels write (B, T, H, D): no copy here.
    at::Tensor result =
        at::scaled_dot_product_attention(query, key, value, {}, 0.0, causal).transpose(1, 2).contiguous();
    if (disturb) disturb(result);
    return result;
  };
  check->elements = asked.answer.numel();
  check->bytes = static_cast<int64_t>(query.nbytes() + key.nbytes() + value.nbytes() + asked.answer.nbytes());
  check->operations = 4.0 * static_cast<double>(spec.batch * spec.heads * spec.queries) *
                      static_cast<double>(spec.keys * spec.size) / (causal ? 2 : 1);
  return check;
}

}  // namespace faultline::screen
