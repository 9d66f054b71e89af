#include "model/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config/config.h"
#include "base/error.h"
#include "model/tokenizer/tokenizer_spec.h"
#include "model/tokenizer/tokenizer_state.h"
#include "model/tokenizer/unicode.h"

namespace faultline::model {
namespace {

AddedTokens added_tokens(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> chosen;
  for (AddedToken token : spec.added) {
    if (token.normalized != normalized) continue;
    if (normalized && spec.nfc) token.content = unicode::nfc(token.content);
    chosen.push_back(std::move(token));
  }
  return AddedTokens(std::move(chosen));
}

}  // namespace

Tokenizer::State::State(TokenizerSpec made)
    : spec(std::move(made)),
      bpe(spec.tokens, spec.merges, spec.ignore_merges),
      pretokenizer(spec.steps, spec.origin),
      added_raw(added_tokens(spec, false)),
      added_normalized(added_tokens(spec, true)),
      chat(recognise_chat_template(spec.chat_template)) {
  for (size_t id = 0; id < spec.tokens.size(); ++id)
    if (spec.tokens[id].kind == Token::Kind::kText)
      ids_of_text.emplace(spec.tokens[id].bytes, static_cast<int64_t>(id));
  for (const AddedToken& token : spec.added) ids_of_text.insert_or_assign(token.content, token.id);
  if (const auto end = ids_of_text.find(std::string(kEndOfTurn)); chat && end != ids_of_text.end())
    spec.end_tokens.push_back(end->second);
  std::sort(spec.end_tokens.begin(), spec.end_tokens.end());
  spec.end_tokens.erase(std::unique(spec.end_tokens.begin(), spec.end_tokens.end()), spec.end_tokens.end());
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_file(const std::filesystem::path& tokenizer_json) {
  return Tokenizer(std::make_unique<State>(read_tokenizer_files(tokenizer_json)));
}

Tokenizer Tokenizer::from_spec(TokenizerSpec spec) { return Tokenizer(std::make_unique<State>(std::move(spec))); }

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<int64_t> ids = state_->spec.prefix;
  ids.reserve(ids.size() + text.size() / 3);
  const auto token = [&](int64_t id) { ids.push_back(id); };
  const auto words = [&](std::string_view piece) {
    state_->pretokenizer.each_word(piece, [&](std::string_view word) { state_->bpe.encode(word, ids); });
  };
  const auto raw_piece = [&](std::string_view piece) {
    const bool normalize = state_->spec.nfc && !unicode::is_plainly_nfc(piece);
    const std::string normalized = normalize ? unicode::nfc(piece) : std::string();
    state_->added_normalized.split(normalize ? normalized : piece, parse_special, words, token);
  };
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, unicode::valid_prefix(text));
    state_->added_raw.split(valid, parse_special, raw_piece, token);
    text.remove_prefix(valid.size());
    const std::string_view broken = text.substr(0, unicode::invalid_prefix(text));
    state_->bpe.encode_bytes(broken, ids);
    text.remove_prefix(broken.size());
  }
  return ids;
}

bool Tokenizer::has_token(int64_t id) const {
  return id >= 0 && id < vocabulary_size() && state_->spec.tokens[static_cast<size_t>(id)].kind != Token::Kind::kNone;
}

const std::string& Tokenizer::bytes_of(int64_t id) const {
  if (!has_token(id))
    throw UsageError(fmt::format("{}: no token has the id {}; the vocabulary ends at {}", state_->spec.origin, id,
                                 vocabulary_size() - 1));
  return state_->spec.tokens[static_cast<size_t>(id)].bytes;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special) const {
  std::string text;
  for (const int64_t id : ids) {
    if (id >= 0 && !has_token(id)) {
      text += unicode::kReplacement;
      continue;
    }
    const std::string& bytes = bytes_of(id);
    if (!skip_special || !state_->spec.tokens[static_cast<size_t>(id)].special) text += bytes;
  }
  return text;
}

int64_t Tokenizer::vocabulary_size() const { return static_cast<int64_t>(state_->spec.tokens.size()); }

std::optional<int64_t> Tokenizer::id_of(std::string_view token) const {
  if (const auto found = state_->ids_of_text.find(std::string(token)); found != state_->ids_of_text.end())
    return found->second;
  const auto bytes = bytes_from_alphabet(token);
  if (!bytes) return std::nullopt;
  return state_->bpe.find(*bytes);
}

std::vector<int64_t> Tokenizer::end_tokens() const { return state_->spec.end_tokens; }

bool Tokenizer::has_chat_template() const { return !state_->spec.chat_template.empty(); }

std::string Tokenizer::render_chat(std::span<const Message> messages, bool add_generation_prompt) const {
  if (!has_chat_template())
    throw UsageError(fmt::format("{}: this tokenizer has no chat template", state_->spec.origin));
  if (!state_->chat)
    throw UsageError(
        fmt::format("{}: the chat template {} is not of the ChatML kind, the only one supported; render the "
                    "conversation yourself and pass text",
                    state_->spec.origin, describe_text(state_->spec.chat_template)));
  return render_chatml(*state_->chat, messages, add_generation_prompt);
}

}  // namespace faultline::model
