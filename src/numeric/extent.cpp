#include "numeric/extent.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace faultline::numeric {
namespace {

constexpr int64_t kMaxIndex = int64_t{1} << 48;
constexpr IndexRange kNothing{1, 0};

bool parse_tile(std::string_view text, int32_t& rows, int32_t& columns) {
  const std::size_t cross = text.find('x');
  if (cross == std::string_view::npos) return false;
  const auto number = [](std::string_view part, int32_t& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc{} && end == part.data() + part.size() && value >= 1 && value <= 65536;
  };
  return number(text.substr(0, cross), rows) && number(text.substr(cross + 1), columns);
}

std::string check_tile(const Node& tile) {
  int32_t rows = 0, columns = 0;
  return parse_tile(tile.as_string(), rows, columns)
             ? ""
             : fmt::format("a tile is ROWSxCOLUMNS, each 1 to 65536, such as 16x16; got '{}'", tile.as_string());
}

// '4-7' or '8-', the end open.
bool parse_range(std::string_view text, IndexRange& range) {
  const auto number = [](std::string_view part, int64_t& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc{} && end == part.data() + part.size() && value >= 0 && value <= kMaxIndex;
  };
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos || !number(text.substr(0, dash), range.first)) return false;
  range.last = kToTheEnd;
  return dash + 1 == text.size() || number(text.substr(dash + 1), range.last);
}

std::string check_range(const Node& node) {
  const std::string& text = node.as_string();
  IndexRange range;
  if (!parse_range(text, range))
    return fmt::format("an index is a number from 0 on (-1: the last), a range is '4-7', or '8-' to the end; got '{}'",
                       text);
  if (range.first <= range.last) return "";
  return fmt::format("the range '{}' is empty: it counts downwards; write '{}-{}'", text, range.last, range.first);
}

Schema index() { return Schema::integer({.min = -kMaxIndex, .max = kMaxIndex}); }

Schema indices() {
  const Schema range = Schema::string().check(check_range);
  return Schema::any_of({index(), range, Schema::list(Schema::any_of({index(), range}), {.min = 1, .max = kMaxRanges})})
      .described_as("a number (5; -1 is the last), '4-7', '8-', or a list of these");
}

std::vector<IndexRange> read_indices(const Node* node) {
  std::vector<IndexRange> ranges;
  if (node == nullptr) return ranges;
  const auto add = [&](const Node& item) {
    IndexRange range;
    if (item.is_string()) {
      FL_ASSERT(parse_range(item.as_string(), range));
    } else {
      range = {item.as_integer(), item.as_integer()};
    }
    ranges.push_back(range);
  };
  if (!node->is_list()) {
    add(*node);
  } else {
    for (const Node& item : node->items()) add(item);
  }
  return ranges;
}

int64_t count_of(const Node* node) {
  return node == nullptr ? 0 : node->is_list() ? static_cast<int64_t>(node->items().size()) : 1;
}

std::string check_extent(const Node& extent) {
  const Node* given = extent.find("structure");
  if (given != nullptr && extent.at("fraction").as_number() == 1) {
    return fmt::format("structure: {} has no effect with fraction: 1, where every element is broken; {}",
                       given->as_string(), "give a fraction below 1, or leave structure out");
  }
  const std::string structure = given == nullptr ? "" : given->as_string();
  if ((extent.find("tile") != nullptr) != (structure == "tile"))
    return "tile: RxC goes with structure: tile, and only with it";
  if (extent.find("period") && structure != "lane") return "period goes with structure: lane";
  const Node *rows = extent.find("rows"), *columns = extent.find("columns"), *elements = extent.find("elements"),
             *at = extent.find("at");
  if ((rows != nullptr || columns != nullptr) + (elements != nullptr) + (at != nullptr) > 1)
    return "give rows and columns, or elements, or at: they are three ways to say the same";
  if (count_of(rows) + count_of(columns) > kMaxRanges)
    return fmt::format("at most {} ranges of rows and columns together; use another rule for the others", kMaxRanges);
  return "";
}

bool has_share(const Node& extent) {
  const Node* fraction = extent.find("fraction");
  return fraction != nullptr && fraction->is_number() && fraction->as_number() < 1;
}

// Resolved against `size`; what lies outside of it is nothing.
IndexRange resolved(const IndexRange& range, int64_t size) {
  const auto from_end = [&](int64_t index) { return index < 0 ? index + size : index; };
  const IndexRange r{from_end(range.first), std::min(from_end(range.last), size - 1)};
  return r.first < 0 || r.first > r.last ? kNothing : r;
}

}  // namespace

Schema extent_schema() {
  const Schema coordinate = Schema::list(index(), {.min = 2, .max = 2}).described_as("a place: [row, column]");
  return Schema::map()
      .field("fraction", Schema::number({.min = 0, .max = 1, .exclusive_min = true}),
             {.default_value = Node(1.0), .doc = "share of units that are broken"})
      .field("structure", Schema::choice({"element", "channel", "row", "tile", "lane"}),
             {.default_value = Node("element"),
              .doc = "what breaks together; the choice is fixed for a seed, rule and site",
              .default_if = has_share})
      .field("tile", Schema::string().check(check_tile), {.doc = "rows x columns of a tile, 16x16"})
      .field("period", Schema::integer({.min = 2, .max = 65536}),
             {.doc = "lanes repeat along the row with this period; default 32"})
      .field("rows", indices(), {.doc = "these rows alone: 3, -1 (the last), '4-7', '8-', or a list"})
      .field("columns", indices(), {.doc = "these columns alone, written like rows"})
      .field("elements", indices(), {.doc = "these elements alone, counted through the whole tensor"})
      .field("at", Schema::list(coordinate, {.min = 1, .max = kMaxRanges}),
             {.doc = "these places alone: [[row, column], …]"})
      .check(check_extent);
}

ExtentSpec read_extent(const Node& extent) {
  ExtentSpec spec;
  spec.rows = read_indices(extent.find("rows"));
  spec.columns = read_indices(extent.find("columns"));
  spec.elements = read_indices(extent.find("elements"));
  if (const Node* at = extent.find("at")) {
    for (const Node& item : at->items())
      spec.coordinates.push_back({item.items()[0].as_integer(), item.items()[1].as_integer()});
  }
  spec.fraction = extent.at("fraction").as_number();
  if (spec.fraction == 1) return spec;
  const std::string& structure = extent.at("structure").as_string();
  spec.structure = structure == "element"   ? Structure::kElement
                   : structure == "channel" ? Structure::kChannel
                   : structure == "row"     ? Structure::kRow
                   : structure == "tile"    ? Structure::kTile
                                            : Structure::kLane;
  if (const Node* tile = extent.find("tile")) parse_tile(tile->as_string(), spec.tile_rows, spec.tile_columns);
  if (const Node* period = extent.find("period")) spec.period = static_cast<int32_t>(period->as_integer());
  return spec;
}

Extent lower_extent(const ExtentSpec& spec, int64_t rows, int64_t columns) {
  Extent extent;
  extent.structure = spec.structure == Structure::kAll && spec.is_exact() ? Structure::kRegion : spec.structure;
  extent.threshold = static_cast<uint32_t>(std::min(std::ldexp(spec.fraction, 32), 4294967295.0));
  extent.tile_rows = spec.tile_rows;
  extent.tile_columns = spec.tile_columns;
  extent.period = spec.period;
  Region& region = extent.region;
  region.width = columns;
  auto add = [&, next = 0](const std::vector<IndexRange>& ranges, int64_t size, int32_t& count) mutable {
    for (const IndexRange& range : ranges) region.ranges[next++] = resolved(range, size);
    count = static_cast<int32_t>(ranges.size());
  };
  std::vector<IndexRange> elements = spec.elements;
  for (const auto& [row, column] : spec.coordinates) {
    const IndexRange r = resolved({row, row}, rows), c = resolved({column, column}, columns);
    const int64_t element = r.first * columns + c.first;
    elements.push_back(r.first > r.last || c.first > c.last ? kNothing : IndexRange{element, element});
  }
  add(spec.rows, rows, region.rows);
  add(spec.columns, columns, region.columns);
  add(elements, rows * columns, region.elements);
  return extent;
}

}  // namespace faultline::numeric
