// The matrix for people: matrix.md, matrix.json and matrix.html (one file, no scripts, no network).
#pragma once

#include <filesystem>

#include "triage/statistics.h"

namespace faultline::triage {

std::string markdown(const Plan& plan, const Matrix& matrix);
std::string html(const Plan& plan, const Matrix& matrix, const std::vector<RecordedTrial>& trials);
void write_report(const std::filesystem::path& folder, const Plan& plan, const Matrix& matrix,
                  const std::vector<RecordedTrial>& trials);

}  // namespace faultline::triage
