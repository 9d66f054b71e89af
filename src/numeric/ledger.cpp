#include "numeric/ledger.h"

#include <cmath>

namespace faultline::numeric {

void add_to_ledger(const std::vector<SegmentPartial>& partials, int64_t elements, uint64_t* words) {
  for (std::size_t segment = 0; segment < partials.size(); ++segment) {
    const SegmentPartial& partial = partials[segment];
    uint64_t* row = words + segment % kLedgerRows * kRowWords;
    for (int k = 0; k < kPartialSums; ++k) {
      const Digits digits = digits_of(partial.sum[k]);
      row[kWordOverflow] |= digits.overflow ? 1 : 0;
      for (int d = 0; d < 3; ++d) {
        if (digits.digit[d] != 0) row[kWordSums + k * kDigits + digits.first + d] += digits.digit[d];
      }
    }
    for (int k = 0; k < kPartialCounts; ++k) row[kWordCounts + k] += partial.count[k];
    words[kWordStruck] += partial.struck;  // in the first row: portable arithmetic knows no segments here
    row[kWordMax] = double_bits(partial.max) > row[kWordMax] ? double_bits(partial.max) : row[kWordMax];
  }
  words[kWordCalls] += 1;
  words[kWordActive] += 1;
  words[kWordElements] += static_cast<uint64_t>(elements);
}

void decode_ledger(const uint64_t* words, double (&columns)[kLedgerColumns]) {
  uint64_t row[kRowWords] = {};
  for (int k = 0; k < kLedgerWords; ++k) {
    uint64_t& word = row[k % kRowWords];
    word = k % kRowWords == kWordMax ? (words[k] > word ? words[k] : word) : word + words[k];
  }
  columns[kCalls] = static_cast<double>(row[kWordCalls]);
  columns[kActiveCalls] = static_cast<double>(row[kWordActive]);
  columns[kElements] = static_cast<double>(row[kWordElements]);
  constexpr int kCountColumn[kPartialCounts] = {kSelected,  kChanged,   kNonzero, kZeroed,
                                                kNonfinite, kSaturated, kSampled};
  for (int k = 0; k < kPartialCounts; ++k) columns[kCountColumn[k]] = static_cast<double>(row[kWordCounts + k]);
  columns[kStruck] = static_cast<double>(row[kWordStruck]);
  columns[kMaxAbsError] = bits_double(row[kWordMax]);
  constexpr int kSumColumn[kPartialSums] = {kSumAbsError, kSumSquaredError, kSumSquaredValue, kSumSquaredRelative};
  for (int k = 0; k < kPartialSums; ++k) {
    double total = 0;
    for (int d = kDigits - 1; d >= 0; --d)
      total += std::ldexp(static_cast<double>(row[kWordSums + k * kDigits + d]), 32 * d + kLowestExponent);
    columns[kSumColumn[k]] = row[kWordOverflow] != 0 ? INFINITY : total;
  }
}

}  // namespace faultline::numeric
