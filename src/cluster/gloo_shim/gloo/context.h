// Part of our stand-in for Gloo's headers, which the torch wheel leaves out; see gloo_backend.cpp.
#pragma once

#include <gloo/transport/device.h>

#include <chrono>
#include <memory>

namespace gloo {

class Context {
 public:
  Context() = delete;
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
