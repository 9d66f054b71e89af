// Apart from the other factory, so that what needs no GGUF file does not link the reader of them.
#include "model/tokenizer.h"
#include "model/tokenizer_gguf.h"

namespace faultline {

Tokenizer Tokenizer::from_gguf(const GgufFile& file) {
  return from_spec(read_tokenizer_values(file.values(), file.path().string()));
}

}  // namespace faultline
