// One text that every engine's tokenizer is asked about: two tokenizers are taken for the same where they cut it into
// the same tokens. Letters of several scripts, numbers, code and blanks are where tokenizers differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace faultline::diagnose {

inline constexpr const char* kProbeText =
    "The 1st of 12,345 trains (98.6 %) left at 09:07;  it's   late.\n\tdef f(x): return x**2 != 0x1F\n"
    "\u00dcber na\u00efve caf\u00e9s, \u043f\u0440\u0438\u0432\u0435\u0442, \u4f60\u597d\u4e16\u754c, "
    "\u0645\u0631\u062d\u0628\u0627 \U0001f600 #42 @user http://example.org";

std::string tokens_digest(const std::vector<int64_t>& tokens);  // 16 hexadecimal digits

}  // namespace faultline::diagnose
