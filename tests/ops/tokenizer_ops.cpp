// The tokenizer as operators, for tests that hold it against Hugging Face's and for Python callers: tokenizers are
// loaded once and named by a number that stays valid for the life of the process.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <deque>
#include <mutex>

#include "base/error.h"
#include "model/checkpoint/gguf.h"
#include "model/tokenizer/tokenizer.h"

namespace faultline {
namespace {

struct Loaded {
  std::mutex mutex;
  std::deque<model::Tokenizer> tokenizers;  // a deque: references survive push_back
};
Loaded& loaded() {
  static auto* all = new Loaded;
  return *all;
}

template <class Function>
auto as_python_error(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const UsageError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  } catch (const Error& error) {
    TORCH_CHECK(false, error.what());
  }
}

const model::Tokenizer& tokenizer_of(int64_t handle) {
  const std::lock_guard<std::mutex> lock(loaded().mutex);
  if (handle < 0 || handle >= static_cast<int64_t>(loaded().tokenizers.size()))
    throw UsageError("no tokenizer has this handle; tokenizer_load gives them");
  return loaded().tokenizers[static_cast<size_t>(handle)];
}

// A GGUF file, or a tokenizer.json with its neighbours.
int64_t op_load(const std::string& path) {
  return as_python_error([&] {
    model::Tokenizer made = path.ends_with(".gguf") ? model::Tokenizer::from_gguf(model::GgufFile(path))
                                                    : model::Tokenizer::from_file(path);
    const std::lock_guard<std::mutex> lock(loaded().mutex);
    loaded().tokenizers.push_back(std::move(made));
    return static_cast<int64_t>(loaded().tokenizers.size()) - 1;
  });
}

std::vector<int64_t> op_encode(int64_t handle, const std::string& text, bool parse_special) {
  return as_python_error([&] { return tokenizer_of(handle).encode(text, parse_special); });
}

// -> all ids one after another, and how many are each text's
std::tuple<at::Tensor, at::Tensor> op_encode_batch(int64_t handle, at::ArrayRef<std::string> texts,
                                                   bool parse_special) {
  return as_python_error([&] {
    std::vector<int64_t> ids;
    std::vector<int64_t> counts;
    for (const std::string& text : texts) {
      const std::vector<int64_t> one = tokenizer_of(handle).encode(text, parse_special);
      ids.insert(ids.end(), one.begin(), one.end());
      counts.push_back(static_cast<int64_t>(one.size()));
    }
    return std::make_tuple(at::tensor(ids, at::kLong), at::tensor(counts, at::kLong));
  });
}

// Text for Python: broken UTF-8 as U+FFFD, by the rules of the stream decoder.
std::string op_decode(int64_t handle, at::IntArrayRef ids, bool skip_special) {
  return as_python_error([&] {
    const model::Tokenizer& tokenizer = tokenizer_of(handle);
    if (!skip_special) return model::to_text(tokenizer.decode({ids.data(), ids.size()}));
    model::StreamDecoder stream(tokenizer);
    std::string text;
    for (const int64_t id : ids) text += stream.push(id);
    return text + stream.finish();
  });
}

std::string op_chat(int64_t handle, at::ArrayRef<std::string> roles, at::ArrayRef<std::string> contents,
                    bool add_generation_prompt) {
  return as_python_error([&] {
    if (roles.size() != contents.size()) throw UsageError("tokenizer_chat: as many roles as contents are wanted");
    std::vector<model::Message> messages;
    for (size_t i = 0; i < roles.size(); ++i) messages.push_back({roles[i], contents[i]});
    return tokenizer_of(handle).render_chat(messages, add_generation_prompt);
  });
}

std::vector<int64_t> op_end_tokens(int64_t handle) {
  return as_python_error([&] { return tokenizer_of(handle).end_tokens(); });
}
int64_t op_vocabulary_size(int64_t handle) {
  return as_python_error([&] { return tokenizer_of(handle).vocabulary_size(); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline_testing, m) {
  m.def("tokenizer_load(str path) -> int", op_load);
  m.def("tokenizer_encode(int handle, str text, bool parse_special) -> int[]", op_encode);
  m.def("tokenizer_encode_batch(int handle, str[] texts, bool parse_special) -> (Tensor, Tensor)", op_encode_batch);
  m.def("tokenizer_decode(int handle, int[] ids, bool skip_special) -> str", op_decode);
  m.def("tokenizer_chat(int handle, str[] roles, str[] contents, bool add_generation_prompt) -> str", op_chat);
  m.def("tokenizer_end_tokens(int handle) -> int[]", op_end_tokens);
  m.def("tokenizer_vocabulary_size(int handle) -> int", op_vocabulary_size);
}

}  // namespace faultline
