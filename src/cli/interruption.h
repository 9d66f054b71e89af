// What Ctrl-C leaves behind, in a sentence. A command says beforehand what is kept and how to go on; the handler only
// writes that and lets the signal end the process, so that scripts see what ended it. Records survive a kill at any
// moment, so nothing has to be saved here. Commands that run trials have handlers of their own: they let trials end.
#pragma once

#include <string>

namespace faultline::cli {

// Until the next call. "": the signal ends the process without a word.
void on_interrupt_say(const std::string& sentence);

}  // namespace faultline::cli
