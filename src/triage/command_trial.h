// A trial that is somebody's own command: `faultline triage run --recipe R -- torchrun … train.py`. The command is run
// as it was typed, without a shell, in a process group of its own; stdout and stderr go to files of the trial's folder.
// This process stands between it and the campaign for one reason: torchrun gives its workers sessions of their own, so
// that ending a group does not end them. Here every process that the command leaves behind becomes a child of this one
// and is ended with it, whoever asks: the time limit, an interruption, the death of the campaign.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"

namespace faultline::triage {

inline constexpr double kEndingTime = 10;  // seconds from SIGTERM to SIGKILL

inline constexpr const char* kFilesOfCommand = "files";  // folder of what the command writes, in its trial's folder

// Reads request.json of the folder, runs the command, writes stdout.log, stderr.log and response.json.
void run_command_trial(const std::filesystem::path& folder);

// The beginning and the end of a file, at most so many bytes of each.
std::string ends_of(const std::filesystem::path& file, size_t bytes);

}  // namespace faultline::triage
