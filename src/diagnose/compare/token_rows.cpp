#include "diagnose/compare/token_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "base/text.h"

namespace faultline::diagnose {
namespace {

uint64_t next_key(uint64_t key, int64_t token) {
  return std::max<uint64_t>(1, mix64(key, static_cast<uint64_t>(token) + 1));
}

constexpr uint64_t kBeginning = 0x66697273742064ull;

struct Sequence {
  uint64_t key = kBeginning;
  int64_t position = 0, last_row = -1;

  void add(TokenRows& rows, int64_t row, int64_t token) {
    const auto at = static_cast<std::size_t>(row);
    if (key != 0) key = next_key(key, token);
    rows.keys[at] = key, rows.tokens[at] = token, rows.positions[at] = position++;
    if (last_row >= 0) rows.following[static_cast<std::size_t>(last_row)] = row;
    last_row = row;
  }
};

void add_padded(TokenRows& rows, const std::string& kind, const at::Tensor& tokens, const at::Tensor& mask,
                const std::vector<int64_t>& ids, const TokenRows& before) {
  const int64_t batch = tokens.size(0), length = tokens.size(1);
  const bool masked = mask.defined() && mask.dim() == 2 && mask.size(0) == batch && mask.size(1) >= length;
  const std::vector<int64_t> real = masked ? on_host(mask.narrow(1, mask.size(1) - length, length)) : ids;
  const bool continues = kind == "decode" && std::ssize(before.ends) == batch;
  for (int64_t b = 0; b < batch; ++b) {
    Sequence sequence;
    if (kind == "decode") sequence.key = 0;  // not known
    if (continues) {
      const TokenRows::End& end = before.ends[static_cast<std::size_t>(b)];
      sequence.key = end.key, sequence.position = end.position + 1;
    }
    for (int64_t t = 0; t < length; ++t) {
      const int64_t row = b * length + t;
      if (!masked || real[static_cast<std::size_t>(row)] != 0)
        sequence.add(rows, row, ids[static_cast<std::size_t>(row)]);
    }
    rows.ends.push_back({sequence.key, sequence.position - 1});
  }
}

void add_packed(TokenRows& rows, const std::vector<int64_t>& ids, const std::vector<int64_t>& positions,
                const TokenRows& before) {
  std::multimap<int64_t, uint64_t> ends;
  for (const TokenRows::End& end : before.ends) ends.emplace(end.position, end.key);
  Sequence sequence;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    const int64_t position = positions[row];
    const bool goes_on = row > 0 && position == sequence.position && position > 0;
    if (!goes_on) {
      if (row > 0) rows.ends.push_back({sequence.key, sequence.position - 1});
      sequence = {};
      if (position > 0) {  // of an earlier forward, if only one can be meant
        sequence.key = ends.count(position - 1) == 1 ? ends.find(position - 1)->second : 0;
        sequence.position = position;
      }
    }
    sequence.add(rows, static_cast<int64_t>(row), ids[row]);
  }
  if (!ids.empty()) rows.ends.push_back({sequence.key, sequence.position - 1});
}

}  // namespace

std::vector<int64_t> on_host(const at::Tensor& x) {
  const at::Tensor host = x.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

TokenRows token_rows(const std::string& kind, const at::Tensor& tokens, const at::Tensor& mask,
                     const at::Tensor& positions, const TokenRows& before) {
  TokenRows rows;
  if (!tokens.defined()) return rows;
  const std::vector<int64_t> ids = on_host(tokens);
  rows.keys.resize(ids.size()), rows.positions.resize(ids.size()), rows.tokens.resize(ids.size(), -1);
  rows.following.resize(ids.size(), -1);
  // One row with positions that begin again holds several sequences.
  const bool is_packed = tokens.dim() == 2 && tokens.size(0) == 1 && positions.defined() &&
                         positions.numel() == tokens.numel() && positions.eq(0).sum().item<int64_t>() > 1;
  if (is_packed) {
    add_packed(rows, ids, on_host(positions.reshape(-1)), before);
  } else if (tokens.dim() == 2) {
    add_padded(rows, kind, tokens, mask, ids, before);
  } else if (tokens.dim() == 1) {
    const bool known = positions.defined() && positions.dim() == 1 && positions.numel() == tokens.numel();
    add_packed(rows, ids, on_host(known ? positions : at::arange(tokens.numel())), before);
  }
  return rows;
}

std::vector<int64_t> chosen_rows(const TokenRows& rows, int64_t most) {
  std::vector<std::vector<int64_t>> sequences;  // their rows
  std::vector<std::size_t> of_row(rows.keys.size(), 0);
  for (std::size_t row = 0; row < rows.keys.size(); ++row) {  // a row comes before the one that follows it
    if (rows.keys[row] == 0) continue;
    if (of_row[row] == 0) sequences.emplace_back(), of_row[row] = sequences.size();
    sequences[of_row[row] - 1].push_back(static_cast<int64_t>(row));
    if (rows.following[row] >= 0) of_row[static_cast<std::size_t>(rows.following[row])] = of_row[row];
  }
  const auto by_key = [&](int64_t a, int64_t b) {
    return std::pair(rows.keys[static_cast<std::size_t>(a)], a) < std::pair(rows.keys[static_cast<std::size_t>(b)], b);
  };
  for (std::vector<int64_t>& sequence : sequences) std::sort(sequence.begin(), sequence.end(), by_key);
  std::sort(sequences.begin(), sequences.end(),
            [&](const auto& a, const auto& b) { return by_key(a.front(), b.front()); });
  if (sequences.size() > kSampledSequences) sequences.resize(kSampledSequences);
  const int64_t each = std::max<int64_t>(1, most / std::max<int64_t>(1, std::ssize(sequences)));
  std::vector<int64_t> chosen;
  for (const std::vector<int64_t>& sequence : sequences)
    chosen.insert(chosen.end(), sequence.begin(), sequence.begin() + std::min(each, std::ssize(sequence)));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace faultline::diagnose
