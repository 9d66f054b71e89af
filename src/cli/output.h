// Standard output and how it looks. Results go through print(), which remembers a failed write (a closed pipe, a full
// disk) instead of dying from it; colour marks only headings and verdicts, so that nothing is lost without it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace faultline::cli {

void print(std::string_view text);
void print_now(std::string_view text);  // and flushed: for text that appears as it is made
void print_json(const Json& json);
// Flushes. kOk, also where the reader went away; kRuntime, with a sentence, where the output could not be written.
ExitCode finish_output();

enum class Style { kHeading, kGood, kBad };
void choose_color(const std::string& when);  // auto, always, never; UsageError otherwise
std::string styled(Style style, std::string_view text);

// Lines of at most `width` columns, broken between words where they fit; a character counts one.
std::vector<std::string> wrapped(const std::string& text, std::size_t width);

// Columns padded to the widest cell; the last one is left as it is. On a terminal that is narrower than the table its
// widest columns are wrapped between words.
std::string table(const std::vector<std::vector<std::string>>& rows);

std::string number_text(double value);              // six significant digits
std::string percent(double share);                  // "12.5 %"
std::string share_text(double part, double whole);  // "12.5 %"
std::string joined(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace faultline::cli
