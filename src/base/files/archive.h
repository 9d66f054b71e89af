// Files as one: a tar archive (POSIX ustar) and its compression by gzip, made in memory. The same files give the same
// bytes, on every machine and at any time: entries in the order of their names, no times, no owners.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace faultline {

// Can an entry have this name? ustar has room for 100 bytes, and for 155 more before a slash.
bool fits_tar_name(std::string_view name);

// Regular files, mode 0644. Names are relative, with slashes; each must fit.
std::string tar_archive(const std::map<std::string, std::string>& files);

std::string gzip_compressed(std::string_view bytes);  // RFC 1952; one block of RFC 1951 with the fixed code

}  // namespace faultline
