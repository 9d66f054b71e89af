// The words of the configuration, in the order of their enumerations: for its schema and its reader.
#pragma once

#include <array>

namespace faultline::race {

inline constexpr std::array kKeyNames = {"comm_input", "comm_output", "compute_input", "compute_output"};
inline constexpr std::array kPlaceNames = {"comm_input",     "comm_output", "compute_input",
                                           "compute_output", "reduce",      "h2d"};
inline constexpr std::array kFaultNames = {"bitflip", "zero",  "stale", "swap", "partial",
                                           "nan",     "delay", "skip",  "exit"};
inline constexpr std::array kModeNames = {"default", "fsdp", "ddp"};
inline constexpr std::array kComputeNames = {"gemm", "transformer", "transformer_gemm"};
inline constexpr std::array kOptimizerNames = {"none", "sgd", "adamw"};
inline constexpr std::array kTimingNames = {"before", "after", "off"};

}  // namespace faultline::race
