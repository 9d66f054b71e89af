// Screens of many devices as one: a file of files for a page, numbers for a monitor, and what earlier screens of the
// same device said.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace faultline::screen {

// Records of devices, or of fleets, whose devices are taken out. UsageError where a file is neither.
std::vector<Json> read_records(const std::vector<std::string>& files);

// {"kind": "screen_fleet", "devices": […], "counts": {…}, "exit_code": …}. Of several records of one device the latest
// counts; the others are its history.
Json merge(std::vector<Json> records);

// The text format of Prometheus' textfile collector; one line a number, nothing else needed to read it.
std::string prometheus_text(const Json& fleet);

// Puts "earlier" into the record: how often this device was screened, what came out, which counters rose, what of its
// identity changed, and the bound over all its screens.
void compare_with_earlier(Json& record, const std::vector<Json>& earlier);

// Earlier records of this device in a folder, oldest first; files that are no records are left alone.
std::vector<Json> earlier_records(const std::filesystem::path& folder, const Json& id);

std::string file_name(const Json& record);  // screen-HOST-DEVICE-TIME.json

}  // namespace faultline::screen
