// Keeps "Overriding a previously registered kernel" from being printed for what we do on purpose.
#pragma once

#include <c10/util/Exception.h>

namespace faultline {

class SilentWarnings : public c10::WarningHandler {
 public:
  SilentWarnings() : before_(c10::WarningUtils::get_warning_handler()) { c10::WarningUtils::set_warning_handler(this); }
  ~SilentWarnings() override { c10::WarningUtils::set_warning_handler(before_); }
  void process(const c10::Warning&) override {}

 private:
  c10::WarningHandler* before_;
};

}  // namespace faultline
