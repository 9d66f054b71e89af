// Gloo's process group without Python. The wheel carries the class and its header but not Gloo's own headers; the few
// types that the header names are declared in gloo_shim/, and the layout of the class, which is libtorch's, is checked
// against the size that this torch allocates.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace faultline::race {

// `loopback`: all ranks are on this machine, so nothing listens where another machine could reach it.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix,
                                            int rank, int ranks, std::chrono::milliseconds timeout, bool loopback);

}  // namespace faultline::race
