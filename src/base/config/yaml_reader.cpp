// YAML, read through libyaml's events: they carry positions, leave aliases to us, and let a hostile file be refused
// while it is being read. libyaml speaks YAML 1.1, but only plain scalars differ in what we accept, and those are
// resolved here, by the core schema of YAML 1.2.
#include <fmt/format.h>
#include <yaml.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>

#include "base/config/config_reader.h"

namespace faultline {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?   with the sign already taken off
bool is_float(std::string_view text) {
  std::size_t at = 0;
  const auto digits = [&] {
    const std::size_t start = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at - start;
  };
  const std::size_t whole = digits();
  std::size_t fraction = 0;
  if (at < text.size() && text[at] == '.') {
    ++at;
    fraction = digits();
  }
  if (whole + fraction == 0) return false;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    if (digits() == 0) return false;
  }
  return at == text.size();
}

bool is_integer(std::string_view digits, int base) {
  if (digits.empty()) return false;
  return std::all_of(digits.begin(), digits.end(), [base](char c) {
    if (base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) return true;
    return c >= '0' && c < '0' + std::min(base, 10);
  });
}

Node to_integer(std::string_view text, std::string_view signed_digits, int base) {
  std::int64_t value = 0;
  if (signed_digits.starts_with('+')) signed_digits.remove_prefix(1);
  const auto [end, error] =
      std::from_chars(signed_digits.data(), signed_digits.data() + signed_digits.size(), value, base);
  if (error != std::errc())
    throw UsageError(fmt::format("the integer {} does not fit in 64 bits", describe_text(text)));
  FL_ASSERT(end == signed_digits.data() + signed_digits.size());
  return value;
}

Node to_number(std::string_view text) {
  double value = 0;
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc())
    throw UsageError(fmt::format("the number {} is outside the range of double", describe_text(text)));
  FL_ASSERT(end == digits.data() + digits.size());
  return value;
}

bool is_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// libyaml's words for the mistakes that people make most often, in ours.
std::string explain(std::string_view problem) {
  static const std::unordered_map<std::string_view, std::string_view> kWords = {
      {"did not find expected key", "expected 'key: value' here; check the colon and the indentation"},
      {"could not find expected ':'", "a ':' is missing after the key"},
      {"did not find expected ',' or '}'", "the map in braces is not closed: a '}' or ',' is missing"},
      {"did not find expected ',' or ']'", "the list in brackets is not closed: a ']' or ',' is missing"},
      {"did not find expected node content", "a value is missing here"},
      {"did not find expected '-' indicator", "expected the next '- ' here; check the indentation"},
      {"found unexpected end of stream", "the quoted string is not closed"},
      {"found unexpected document indicator", "the quoted string is not closed"},
      {"mapping values are not allowed in this context",
       "a ':' is not allowed here; quote the value, or check the indentation"},
      {"block sequence entries are not allowed in this context",
       "a '- ' is not allowed here; start the list on a new line"},
      {"found character that cannot start any token", "a value cannot start with this character; quote it"},
      {"did not find expected <document start>",
       "text after the end of the document; check the indentation (one document a file)"}};
  const auto found = kWords.find(problem);
  return std::string(found == kWords.end() ? problem : found->second);
}

TextPlace place_of(const yaml_mark_t& mark) {
  return {static_cast<int>(mark.line) + 1, static_cast<int>(mark.column) + 1};
}

std::string_view text_of(const yaml_char_t* text) {
  return text == nullptr ? std::string_view() : reinterpret_cast<const char*>(text);
}

// One event of the parser, freed when it goes.
struct Event {
  explicit Event(yaml_parser_t& parser) {
    if (yaml_parser_parse(&parser, &event)) return;
    if (parser.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
    const std::string_view problem = parser.problem == nullptr ? "not YAML" : parser.problem;
    // What is missing shows only at the end; the key, bracket or quote that lacks it is the better place.
    const bool incomplete = problem.starts_with("could not find") || problem.starts_with("did not find expected ','");
    throw ReadFailure(place_of(incomplete ? parser.context_mark : parser.problem_mark), explain(problem));
  }
  ~Event() { yaml_event_delete(&event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  yaml_event_t event;
};

class YamlReader {
 public:
  YamlReader(const std::string& source, std::shared_ptr<const std::string> file)
      : source_(source), builder_(std::move(file)) {
    if (!yaml_parser_initialize(&parser_)) throw std::bad_alloc();
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(source.data()), source.size());
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
  }
  ~YamlReader() { yaml_parser_delete(&parser_); }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;

  Node read() {
    while (!ended_) {
      const Event next(parser_);
      take(next.event);
    }
    if (documents_ == 0) builder_.scalar(Node(), {});
    return builder_.take();
  }

 private:
  void take(const yaml_event_t& event);
  void take_scalar(const yaml_event_t& event);
  void take_key(const yaml_event_t& event, bool plain, const std::string& text);
  void take_alias(const yaml_event_t& event);
  void begin_document(const yaml_event_t& event);
  void begin(std::string_view what, const yaml_event_t& event, std::string_view tag, std::string_view anchor);
  void close();
  void refuse_tag(const yaml_event_t& event, std::string_view tag) const;
  void refuse_as_key(const yaml_event_t& event, std::string_view what) const;
  bool follows_colon(const yaml_event_t& event) const;

  const std::string& source_;
  TreeBuilder builder_;
  yaml_parser_t parser_;
  bool ended_ = false;
  int documents_ = 0;
  std::vector<std::string> open_anchors_;  // of the open lists and maps; "": none
  std::unordered_map<std::string, Node> anchors_;
};

void YamlReader::take(const yaml_event_t& event) {
  switch (event.type) {
    case YAML_STREAM_END_EVENT: ended_ = true; break;
    case YAML_DOCUMENT_START_EVENT: begin_document(event); break;
    case YAML_ALIAS_EVENT: take_alias(event); break;
    case YAML_SCALAR_EVENT: take_scalar(event); break;
    case YAML_SEQUENCE_START_EVENT:
      begin("a list", event, text_of(event.data.sequence_start.tag), text_of(event.data.sequence_start.anchor));
      builder_.begin_list(place_of(event.start_mark));
      break;
    case YAML_MAPPING_START_EVENT:
      begin("a map", event, text_of(event.data.mapping_start.tag), text_of(event.data.mapping_start.anchor));
      builder_.begin_map(place_of(event.start_mark));
      break;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: close(); break;
    default: break;
  }
}

void YamlReader::begin_document(const yaml_event_t& event) {
  if (documents_++ > 0) {
    throw ReadFailure(place_of(event.start_mark),
                      "text after the end of the document; check the indentation (one document a file)");
  }
}

void YamlReader::refuse_tag(const yaml_event_t& event, std::string_view tag) const {
  if (tag.empty() || tag == "!") return;
  throw ReadFailure(
      place_of(event.start_mark),
      fmt::format("tags are not supported, got {}; quote a value to make it a string", describe_text(tag)));
}

void YamlReader::refuse_as_key(const yaml_event_t& event, std::string_view what) const {
  if (builder_.wants_key())
    throw ReadFailure(place_of(event.start_mark), fmt::format("a key must be a string, got {}", what));
}

void YamlReader::begin(std::string_view what, const yaml_event_t& event, std::string_view tag,
                       std::string_view anchor) {
  refuse_as_key(event, what);
  refuse_tag(event, tag);
  open_anchors_.emplace_back(anchor);
}

void YamlReader::take_alias(const yaml_event_t& event) {
  refuse_as_key(event, "an alias");
  const std::string name(text_of(event.data.alias.anchor));
  const auto found = anchors_.find(name);
  if (found == anchors_.end()) {
    const bool open = std::find(open_anchors_.begin(), open_anchors_.end(), name) != open_anchors_.end();
    throw ReadFailure(place_of(event.start_mark), open ? "an alias must not stand inside what it names"
                                                       : "the alias names an anchor that is not defined above it");
  }
  builder_.subtree(found->second, place_of(event.start_mark));
}

void YamlReader::take_key(const yaml_event_t& event, bool plain, const std::string& text) {
  const TextPlace place = place_of(event.start_mark);
  if (plain && text == "<<") throw ReadFailure(place, "merge keys (<<) are not supported; write the keys out");
  if (plain && resolve_plain_scalar(text).is_null()) refuse_as_key(event, "nothing (null)");
  if (plain && !resolve_plain_scalar(text).is_string())
    refuse_as_key(event, fmt::format("{}; quote it: \"{}\"", text, text));
  builder_.key(text, place);
}

// libyaml invents an empty value for a key without colon in braces; one that was really written stands behind a colon.
bool YamlReader::follows_colon(const yaml_event_t& event) const {
  const std::size_t end = std::min(event.start_mark.index, source_.size());
  const std::size_t last = source_.find_last_not_of(" \t\n", end == 0 ? 0 : end - 1);
  return last != std::string::npos && source_[last] == ':';
}

void YamlReader::take_scalar(const yaml_event_t& event) {
  const auto& scalar = event.data.scalar;
  TextPlace place = place_of(event.start_mark);
  const std::string text(reinterpret_cast<const char*>(scalar.value), scalar.length);
  const bool plain = scalar.style == YAML_PLAIN_SCALAR_STYLE && text_of(scalar.tag) != "!";
  refuse_tag(event, text_of(scalar.tag));
  try {
    if (builder_.wants_key()) {
      if (scalar.anchor != nullptr) throw ReadFailure(place, "a key must not have an anchor");
      return take_key(event, plain, text);
    }
    if (plain && text.empty() && builder_.depth() > 0 && !builder_.in_list()) {
      const TextPlace key = builder_.pending_key_place();
      if (scalar.anchor == nullptr && !follows_colon(event)) throw ReadFailure(key, "a ':' is missing after the key");
      place = key;  // an absent value has no place of its own
    }
    Node node = plain ? resolve_plain_scalar(text) : Node(text);
    builder_.scalar(node, place);
    if (scalar.anchor == nullptr) return;
    builder_.charge(node, place);
    anchors_[std::string(text_of(scalar.anchor))] = std::move(node);
  } catch (const UsageError& error) {
    throw ReadFailure(place, error.what());
  }
}

void YamlReader::close() {
  const std::string anchor = open_anchors_.back();
  open_anchors_.pop_back();
  if (!anchor.empty()) {
    const Node& closed = builder_.innermost();
    builder_.charge(closed, {closed.position().line, closed.position().column});
    anchors_[anchor] = closed;
  }
  builder_.end();
}

}  // namespace

Node resolve_plain_scalar(std::string_view text) {
  if (is_any(text, {"", "~", "null", "Null", "NULL"})) return {};
  if (is_any(text, {"true", "True", "TRUE"})) return true;
  if (is_any(text, {"false", "False", "FALSE"})) return false;
  if (text.starts_with("0x") && is_integer(text.substr(2), 16)) return to_integer(text, text.substr(2), 16);
  if (text.starts_with("0o") && is_integer(text.substr(2), 8)) return to_integer(text, text.substr(2), 8);
  const bool has_sign = text.starts_with('-') || text.starts_with('+');
  const std::string_view unsigned_text = text.substr(has_sign ? 1 : 0);
  if (is_integer(unsigned_text, 10)) return to_integer(text, text, 10);
  if (is_float(unsigned_text)) return to_number(text);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (is_any(unsigned_text, {".inf", ".Inf", ".INF"})) return text.starts_with('-') ? -kInfinity : kInfinity;
  if (is_any(text, {".nan", ".NaN", ".NAN"})) return std::numeric_limits<double>::quiet_NaN();
  return text;
}

Node read_yaml(std::string_view text, std::shared_ptr<const std::string> file) {
  const std::string source = prepare_source(text);
  return YamlReader(source, std::move(file)).read();
}

}  // namespace faultline
