// Tasks on a Ray cluster. A task's folder travels: what lies in it is sent, the program runs with it on some machine,
// and what was asked for comes back into it. A helper in Python (python/faultline/ray_executor.py) speaks with Ray; it
// gets requests and gives answers, a JSON line each, over its standard input and output. Campaigns and their records
// stay here: a cluster only changes where a process runs.
#pragma once

#include <memory>

#include "trials/executor.h"

namespace faultline::trials {

// Starts the helper with the Python of FAULTLINE_PYTHON (python3) and waits until it is connected to the cluster that
// RAY_ADDRESS names (else one of its own on this machine, for nobody else). This program must exist under the same path
// on every machine. RuntimeFailure: no Ray, no cluster.
std::unique_ptr<Executor> ray_executor();

}  // namespace faultline::trials
