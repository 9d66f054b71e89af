#include "model/tokenizer/tokenizer_spec.h"

#include <fmt/format.h>

#include <array>

#include "base/config/config.h"
#include "base/error.h"
#include "model/tokenizer/unicode.h"

namespace faultline::model {
namespace {

constexpr uint32_t kAlphabetEnd = 0x144;  // 256 printable characters: 188 of Latin-1, then U+0100 to U+0143

struct Alphabet {
  std::array<uint16_t, 256> character{};
  std::array<int16_t, kAlphabetEnd> byte{};  // -1: not of the alphabet
};

const Alphabet& alphabet() {
  static const Alphabet table = [] {
    Alphabet made;
    made.byte.fill(-1);
    uint16_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      const uint16_t character = prints ? static_cast<uint16_t>(byte) : next++;
      made.character[static_cast<size_t>(byte)] = character;
      made.byte[character] = static_cast<int16_t>(byte);
    }
    return made;
  }();
  return table;
}

}  // namespace

std::optional<std::string> bytes_from_alphabet(std::string_view written) {
  std::string bytes;
  for (size_t at = 0; at < written.size();) {
    if (unicode::sequence_length(written.substr(at)) == 0) return std::nullopt;
    const unicode::CodePoint point = unicode::decode(written.data() + at);
    if (point.value >= kAlphabetEnd || alphabet().byte[point.value] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[point.value]);
    at += point.length;
  }
  return bytes;
}

std::string to_alphabet(std::string_view bytes) {
  std::string written;
  for (const char byte : bytes) unicode::append_utf8(written, alphabet().character[static_cast<unsigned char>(byte)]);
  return written;
}

void VocabularyBuilder::refuse(const std::string& place, const std::string& complaint) const {
  throw UsageError(fmt::format("{}: {}: {}", spec_.origin, place, complaint));
}

Token& VocabularyBuilder::slot(const std::string& place, int64_t id) {
  if (id < 0 || id > kMaxTokenId) refuse(place, fmt::format("wanted an id from 0 to {}, found {}", kMaxTokenId, id));
  if (static_cast<size_t>(id) >= spec_.tokens.size()) spec_.tokens.resize(static_cast<size_t>(id) + 1);
  return spec_.tokens[static_cast<size_t>(id)];
}

void VocabularyBuilder::add_token(const std::string& place, const std::string& written, int64_t id) {
  Token& token = slot(place, id);
  if (token.kind != Token::Kind::kNone) refuse(place, fmt::format("the id {} is given to two tokens", id));
  const auto bytes = bytes_from_alphabet(written);
  token.kind = bytes && !bytes->empty() ? Token::Kind::kBytes : Token::Kind::kText;
  token.bytes = bytes ? *bytes : written;
  if (!ids_.emplace(written, static_cast<int32_t>(id)).second)
    refuse(place, fmt::format("the token {} has two ids", describe_text(written)));
}

int32_t VocabularyBuilder::merged_id(const std::string& place, const std::string& written) const {
  const auto found = ids_.find(written);
  if (found == ids_.end()) refuse(place, fmt::format("{} is not in the vocabulary", describe_text(written)));
  if (spec_.tokens[static_cast<size_t>(found->second)].kind != Token::Kind::kBytes)
    refuse(place, fmt::format("{} is not written in the byte alphabet", describe_text(written)));
  return found->second;
}

void VocabularyBuilder::add_merge(const std::string& place, const std::string& left, const std::string& right) {
  const int32_t a = merged_id(place, left);
  const int32_t b = merged_id(place, right);
  spec_.merges.push_back({a, b, merged_id(place, left + right)});
}

void VocabularyBuilder::add_added_token(const std::string& place, AddedToken token) {
  if (token.content.empty()) refuse(place, "an added token is empty");
  if (token.content.size() > kMaxAddedTokenBytes)
    refuse(place, fmt::format("an added token of {} bytes; at most {} are supported", token.content.size(),
                              kMaxAddedTokenBytes));
  const auto known = ids_.find(token.content);
  if (known != ids_.end() && known->second != token.id)
    refuse(place, fmt::format("{} has the id {} here and {} in the vocabulary", describe_text(token.content), token.id,
                              known->second));
  Token& entry = slot(place, token.id);
  if (known == ids_.end() && entry.kind != Token::Kind::kNone)
    refuse(place, fmt::format("the id {} is given to two tokens", token.id));
  if (!added_ids_.emplace(token.content, static_cast<int32_t>(token.id)).second)
    refuse(place, fmt::format("the added token {} is there twice", describe_text(token.content)));
  if (known == ids_.end()) entry = {Token::Kind::kText, token.special, token.content};
  entry.special = token.special;
  spec_.added.push_back(std::move(token));
}

std::optional<int64_t> VocabularyBuilder::id_of(const std::string& written) const {
  for (const auto* ids : {&added_ids_, &ids_})
    if (const auto found = ids->find(written); found != ids->end()) return found->second;
  return std::nullopt;
}

bool VocabularyBuilder::has_all_bytes() const {
  for (int byte = 0; byte < 256; ++byte)
    if (!ids_.contains(to_alphabet(std::string(1, static_cast<char>(byte))))) return false;
  return true;
}

}  // namespace faultline::model
