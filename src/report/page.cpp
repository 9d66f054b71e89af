#include <fmt/format.h>

#include "report/record.h"
#include "report/story.h"

namespace faultline::report {
namespace {

constexpr const char* kHead =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src "
    "data:\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n";

const char* mark(Tone tone) {  // colour alone is not for everybody
  switch (tone) {
    case Tone::kGood: return "Good";
    case Tone::kBad: return "Damage found";
    case Tone::kDoubt: return "Incomplete";
    default: return "Result";
  }
}

Html verdict_of(const LoadedRecord& record, const Story& story) {
  Html inside = element("p", text(mark(story.tone)), "mark");
  inside += element("p", text(story.headline), "headline");
  Html words;
  for (const std::string& sentence : story.words) words += element("li", text(sentence)) + markup("\n");
  if (!words.empty()) inside += element("ul", words);
  Html out = markup(fmt::format("<div class=\"verdict {}\">", tone_name(story.tone))) + inside + markup("</div>\n");
  if (record.missing.empty()) return out;
  Html missing;
  for (const std::string& sentence : record.missing) missing += element("li", text(sentence)) + markup("\n");
  return out + markup("<div class=\"missing\"><p class=\"mark\">Missing from the record</p>") + element("ul", missing) +
         markup("</div>\n");
}

Html section(const std::string& title, const Html& body) {
  return element("section", element("h2", text(title)) + markup("\n") + body) + markup("\n");
}

Html run_of(const LoadedRecord& record, const Story& story, std::size_t number, bool many) {
  Html out = markup(fmt::format("<article id=\"run-{}\">\n", number));
  if (many) out += element("h1", text(fmt::format("{}: {}", number, record.name), 300)) + markup("\n");
  out += verdict_of(record, story);
  for (const Section& one : story.sections) out += section(one.title, one.body);
  out += section("How to run it again", rerun(record));
  out += section("Where it comes from", provenance(record));
  return out + markup("</article>\n");
}

std::vector<Story> stories_of(const std::vector<LoadedRecord>& records) {
  std::vector<Story> stories;
  for (const LoadedRecord& record : records) stories.push_back(tell(record));
  return stories;
}

}  // namespace

std::string page(const std::vector<LoadedRecord>& records) {
  const std::vector<Story> stories = stories_of(records);
  const bool many = records.size() > 1;
  const std::string title = many              ? fmt::format("{} runs side by side", records.size())
                            : records.empty() ? "no record"
                                              : records.front().name;
  Html body = markup("<header><p class=\"brand\">faultline report</p>") + element("h1", text(title, 300)) +
              markup("</header>\n");
  if (many)
    for (const Section& one : compare(records, stories)) body += section(one.title, one.body);
  for (std::size_t i = 0; i < records.size(); ++i) body += run_of(records[i], stories[i], i + 1, many);
  return fmt::format(
      "{}<title>{} · faultline</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
      kHead, text(title, 300).bytes(), kStyleSheet, body.bytes());
}

std::vector<Outline> outline(const std::vector<LoadedRecord>& records) {
  std::vector<Outline> lines;
  const std::vector<Story> stories = stories_of(records);
  for (std::size_t i = 0; i < records.size(); ++i)
    lines.push_back({records[i].name, records[i].kind, stories[i].headline, records[i].missing});
  return lines;
}

}  // namespace faultline::report
