// The session of a process that is not ours: one recipe, its plan, its census, as Python or C++ clients drive them. The
// operators in `session.cpp` (torch.ops.faultline.plan_*) and the C functions below are all that a client needs; there
// is no Python.h.
#pragma once

#include <cstdint>

extern "C" {
// Called around every module by clients; plain functions, because an operator call costs ten times as much.
void faultline_push_scope(uint32_t place);
void faultline_pop_scope();
void faultline_abandon_scope();  // pop_scope of a module that an exception has ended
// push_scope of the root module, as a forward of this kind; phase: of this forward where the process has none, or -1.
void faultline_begin_forward(uint32_t place, int32_t kind, int32_t phase);
int32_t faultline_kind_number(const char* name);   // of "whole", "prefill", …; -1: there is none
int32_t faultline_phase_number(const char* name);  // of "rollout", …; -1: there is none
}
