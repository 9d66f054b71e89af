// Part of our stand-in for Gloo's headers, which the torch wheel leaves out; see gloo_backend.cpp.
#pragma once

#include <gloo/context.h>
