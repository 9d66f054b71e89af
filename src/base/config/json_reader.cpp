// Strict JSON (RFC 8259). YAML readers do not quite cover it (tabs, surrogate pairs, long keys), so .json files go
// through nlohmann's parser; its events carry no positions, but between two tokens of JSON there is only white space
// and punctuation, so the start of each token follows from the end of the one before.
#include <fmt/format.h>

#include "base/config/config_reader.h"
#include "base/json.h"

namespace faultline {
namespace {

// Counts what the parser has consumed: the parser copies the iterator, the count is shared.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char* begin;
  std::size_t* consumed;

  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    ++at;
    *consumed = static_cast<std::size_t>(at - begin);
    return *this;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) { return a.at == b.at; }
};

class JsonEvents : public nlohmann::json_sax<Json> {
 public:
  JsonEvents(std::string_view source, const std::size_t& consumed, std::shared_ptr<const std::string> file)
      : source_(source), consumed_(consumed), builder_(std::move(file)) {}

  Node take() { return builder_.take(); }

  bool null() override { return scalar(Node()); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override { return number(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return number(text); }
  bool string(string_t& value) override { return scalar(std::move(value)); }
  bool binary(binary_t&) override { throw ReadFailure(next_token(), "binary values are not supported"); }
  bool start_object(std::size_t) override {
    builder_.begin_map(next_token());
    return true;
  }
  bool key(string_t& name) override {
    builder_.key(std::move(name), next_token());
    return true;
  }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override {
    builder_.begin_list(next_token());
    return true;
  }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: the part we want"
    std::string reason = error.what();
    reason.erase(0, reason.find("] ") + 2);
    if (reason.starts_with("parse error at ")) reason.erase(0, reason.find(": ") + 2);
    throw ReadFailure(place_of_offset(source_, position > 0 ? position - 1 : 0), "not valid JSON: " + reason);
  }

 private:
  bool scalar(Node value) {
    builder_.scalar(std::move(value), next_token());
    return true;
  }
  bool number(const std::string& text) {  // by the same rules as in YAML, of whose numbers JSON's are a subset
    const TextPlace place = next_token();
    try {
      builder_.scalar(resolve_plain_scalar(text), place);
    } catch (const UsageError& error) {
      throw ReadFailure(place, error.what());
    }
    return true;
  }
  bool end() {
    builder_.end();
    return true;
  }

  // The place of the token the parser has just reported. Moves on to the end of that token.
  TextPlace next_token() {
    const auto is_between = [](char c) { return std::string_view(" \t\n,:]}").find(c) != std::string_view::npos; };
    while (at_ < source_.size() && is_between(source_[at_])) advance();
    const TextPlace place = place_;
    while (at_ < consumed_) advance();
    return place;
  }

  void advance() {
    const bool newline = source_[at_++] == '\n';
    place_ = newline ? TextPlace{place_.line + 1, 1} : TextPlace{place_.line, place_.column + 1};
  }

  std::string_view source_;
  const std::size_t& consumed_;
  TreeBuilder builder_;
  std::size_t at_ = 0;
  TextPlace place_;
};

}  // namespace

Node read_json(std::string_view text, std::shared_ptr<const std::string> file) {
  const std::string source = prepare_source(text);
  std::size_t consumed = 0;
  JsonEvents events(source, consumed, std::move(file));
  const char* end = source.data() + source.size();
  const bool complete = Json::sax_parse(CountingIterator{source.data(), source.data(), &consumed},
                                        CountingIterator{end, source.data(), &consumed}, &events);
  FL_ASSERT(complete);  // every failure above is thrown
  return events.take();
}

}  // namespace faultline
