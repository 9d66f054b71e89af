#include "numeric/digest.h"

namespace faultline::numeric {

void fill_digest_keys(uint32_t (&words)[2 * kDigestWords]) {
  for (uint32_t pair = 0; pair < kDigestWords / 2; ++pair) {
    const DigestKeys keys = digest_keys(pair);
    for (uint32_t k = 0; k < 2; ++k) {
      words[2 * pair + k] = keys.low[k];
      words[kDigestWords + 2 * pair + k] = keys.high[k];
    }
  }
}

}  // namespace faultline::numeric
