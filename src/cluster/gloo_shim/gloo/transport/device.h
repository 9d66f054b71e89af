// Part of our stand-in for Gloo's headers, which the torch wheel leaves out; see gloo_backend.cpp.
#pragma once

namespace gloo::transport {

class Device;
class UnboundBuffer;

}  // namespace gloo::transport
