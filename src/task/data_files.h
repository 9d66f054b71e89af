// Where the data that ship with the project are: $FAULTLINE_DATA if it is set; else `data` in the folder of
// libfaultline.so or of the program, or beside that folder; else the source tree the library was built from.
#pragma once

#include <filesystem>
#include <string>

namespace faultline {

// "gsm8k/train.jsonl" → its path. UsageError naming the folders where it is not.
std::filesystem::path data_file(const std::string& name);

}  // namespace faultline
