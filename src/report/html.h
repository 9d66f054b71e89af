// Markup as a type. A record may hold anything: a model's own output, a label with a tag in it, bytes that are no text.
// Html is what has been made safe; the only ways to it from a string are text(), which escapes, and markup(), which is
// for literals of ours. What forgets to escape does not compile.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace faultline::report {

constexpr std::size_t kLongestText = 2000;  // bytes of one string of a record on the page; the rest is counted

class Html {
 public:
  Html() = default;
  const std::string& bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  Html& operator+=(const Html& other) {
    bytes_ += other.bytes_;
    return *this;
  }
  friend Html operator+(Html a, const Html& b) { return a += b; }

 private:
  friend Html markup(std::string literal);
  friend Html text(std::string_view from_record, std::size_t longest);
  explicit Html(std::string bytes) : bytes_(std::move(bytes)) {}

  std::string bytes_;
};

Html markup(std::string literal);
// Escaped for content and for quoted attributes. Broken UTF-8, control characters and those that turn the direction of
// what follows become visible marks; past `longest` bytes the text ends with a count of what was left out.
Html text(std::string_view from_record, std::size_t longest = kLongestText);

// <name class="…">content</name>; name and class are ours.
Html element(std::string_view name, const Html& content, std::string_view class_name = "");
Html paragraph(const Html& content, std::string_view class_name = "");
Html code_block(std::string_view content);
// Closed until it is clicked; printed as its heading.
Html folded(const Html& heading, const Html& content);

struct Cell {
  Html content;
  bool numeric = false;
  std::string_view tone = {};  // "good", "bad", "doubt" or nothing
  Cell(Html html) : content(std::move(html)) {}
  Cell(Html html, bool right, std::string_view colour = {}) : content(std::move(html)), numeric(right), tone(colour) {}
  Cell(std::string_view from_record) : content(text(from_record)) {}
  Cell(const std::string& from_record) : content(text(from_record)) {}
  Cell(const char* from_record) : content(text(from_record)) {}
};

Cell number_cell(std::string_view shown, std::string_view tone = {});

// Scrolls sideways within itself on a narrow screen. The heading may be empty.
Html table(const std::vector<std::string>& heading, const std::vector<std::vector<Cell>>& rows);

}  // namespace faultline::report
