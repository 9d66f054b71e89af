#include "report/html.h"

#include <fmt/format.h>

#include <cstdint>

namespace faultline::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// One code point of UTF-8 at the front, or size 0 where there is none: overlong forms, surrogates and what lies past
// U+10FFFF are refused, as by a browser.
struct CodePoint {
  uint32_t value = 0;
  std::size_t size = 0;
};

CodePoint decode(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || bytes.size() < size) return {};
  uint32_t value = lead & (0xFFU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (at(i) & 0x3FU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[size] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return {};
  return {value, size};
}

bool turns_direction(uint32_t c) {
  return (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x200E || c == 0x200F || c == 0x061C;
}

void append_escaped(std::string& out, std::string_view bytes, uint32_t c) {
  switch (c) {
    case '&': out += "&amp;"; return;
    case '<': out += "&lt;"; return;
    case '>': out += "&gt;"; return;
    case '"': out += "&quot;"; return;
    case '\'': out += "&#39;"; return;
    case '\n': out += '\n'; return;
    case '\t': out += '\t'; return;
    default: break;
  }
  if (c < 0x20) {
    out += fmt::format("&#{};", 0x2400 + c);  // the picture of the control character
  } else if (c == 0x7F) {
    out += "&#9249;";
  } else if ((c >= 0x80 && c < 0xA0) || turns_direction(c) || (c & 0xFFFE) == 0xFFFE) {
    out += fmt::format("‹U+{:04X}›", c);
  } else {
    out += bytes;
  }
}

}  // namespace

Html markup(std::string literal) { return Html(std::move(literal)); }

Html text(std::string_view from_record, std::size_t longest) {
  std::string out;
  out.reserve(from_record.size());
  std::size_t i = 0;
  while (i < from_record.size() && i < longest) {
    const CodePoint c = decode(from_record.substr(i));
    if (c.size == 0) {
      out += kReplacement;
      ++i;
      continue;
    }
    append_escaped(out, from_record.substr(i, c.size), c.value);
    i += c.size;
  }
  if (i < from_record.size()) out += fmt::format("… ({} bytes more)", from_record.size() - i);
  return Html(std::move(out));
}

Html element(std::string_view name, const Html& content, std::string_view class_name) {
  const std::string attribute = class_name.empty() ? "" : fmt::format(" class=\"{}\"", class_name);
  return markup(fmt::format("<{0}{1}>{2}</{0}>", name, attribute, content.bytes()));
}

Html paragraph(const Html& content, std::string_view class_name) {
  return element("p", content, class_name) + markup("\n");
}

Html code_block(std::string_view content) {
  // Before the content a line break, which HTML drops: one of the content's own would be dropped instead.
  return element("pre", markup("\n") + text(content, 200'000)) + markup("\n");
}

Html folded(const Html& heading, const Html& content) {
  return element("details", element("summary", heading) + markup("\n") + content) + markup("\n");
}

Cell number_cell(std::string_view shown, std::string_view tone) { return {text(shown), true, tone}; }

Html table(const std::vector<std::string>& heading, const std::vector<std::vector<Cell>>& rows) {
  const auto numeric = [&](std::size_t column) {
    return !rows.empty() && column < rows.front().size() && rows.front()[column].numeric;
  };
  std::string out = "<div class=\"scroll\"><table>";
  if (!heading.empty()) out += "<thead><tr>";
  for (std::size_t i = 0; i < heading.size(); ++i)
    out += fmt::format("<th{}>{}</th>", numeric(i) ? " class=\"n\"" : "", text(heading[i], 200).bytes());
  if (!heading.empty()) out += "</tr></thead>";
  out += "<tbody>\n";
  for (const std::vector<Cell>& row : rows) {
    out += "<tr>";
    for (const Cell& cell : row) {
      std::string classes = cell.numeric ? "n" : "";
      if (!cell.tone.empty()) classes += fmt::format("{}{}", classes.empty() ? "" : " ", cell.tone);
      out += classes.empty() ? "<td>" : fmt::format("<td class=\"{}\">", classes);
      out += cell.content.bytes() + "</td>";
    }
    out += "</tr>\n";
  }
  return markup(out + "</tbody></table></div>\n");
}

}  // namespace faultline::report
