// A file that is either the old one or the new one, at any moment and after any crash: written under a temporary name
// in the same directory, synced, renamed over the target, the directory synced. When the call returns the content is on
// disk; when it throws the target is untouched and the temporary removed.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace faultline {

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

// The same for content that is made piece by piece: `fill` gets the function that appends.
using ByteSink = std::function<void(std::string_view bytes)>;
void write_file_atomically(const std::filesystem::path& path, const std::function<void(const ByteSink& write)>& fill);

// Temporaries of processes that were killed half-way. Call only while holding the directory's lock: a live writer's
// temporary looks the same.
void remove_stale_temporaries(const std::filesystem::path& directory);

}  // namespace faultline
