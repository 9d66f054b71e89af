// The folder in which libfaultline.so lies: what ships beside it (data, the parquet module) is found from there,
// wherever the project was built or installed.
#pragma once

#include <filesystem>

namespace faultline {

std::filesystem::path library_folder();  // without symbolic links; empty where the loader does not say

}  // namespace faultline
