// The names of number formats, one table that everything reads: the parser, `list`, `explain`, the JSON Schema, the
// documents' tests and the arithmetic. A format without a name is described in the recipe by the same words.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/config/schema.h"
#include "numeric/formats.h"

namespace faultline::numeric {

enum class FormatFamily : uint8_t { kFixed, kFp8, kInteger, kBfp };  // which parameters of `quantize` a format takes

struct FormatInfo {
  std::string name;
  FormatFamily family = FormatFamily::kFixed;
  FormatArguments format;
  std::string block;
  std::string scale;
  std::string element;
  std::string follows;  // the text or program whose bits these are
};

std::span<const FormatInfo> format_infos();
// nullptr: no such name
const FormatInfo* find_format(std::string_view name);

// A name, or a map {element, scale, block, …}.
Schema format_schema();
FormatArguments read_format(const Node& format);  // of format_schema(); throws UsageError with the map's position

}  // namespace faultline::numeric
