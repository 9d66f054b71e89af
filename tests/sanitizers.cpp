// What the sanitizers are told in every program of a sanitized build, and why: the only file with suppressions. They
// are compiled in, so that ranks, trials and workers have them too, whatever their environment.
//
// A suppression names a library that is not ours and was not compiled with the sanitizer; nothing of src/ is
// suppressed.

extern "C" {

const char* __asan_default_options() {
  // detect_odr_violation=1: the program and libfaultline.so both hold base/ and record/, equal to the byte.
  // verify_asan_link_order=0: tests preload libraries of their own (an erring disk, a listening probe).
  // detect_stack_use_after_return: not on x86-64. Frames of the detector's own stack are not aligned to 64 bytes, and
  // a kernel's AVX-512 store of a local ends in SIGSEGV (llvm-project #152819; g++ has the same runtime).
#if defined(__x86_64__)
  return "detect_stack_use_after_return=0:"
#else
  return "detect_stack_use_after_return=1:"
#endif
         "strict_string_checks=1:detect_odr_violation=1:verify_asan_link_order=0:exitcode=99";
}

const char* __ubsan_default_options() { return "print_stacktrace=1:exitcode=99"; }

const char* __lsan_default_options() { return "print_suppressions=0:exitcode=99"; }

const char* __tsan_default_options() {
  // libgomp and libtorch synchronise in code that was not compiled for the sanitizer: it cannot see their barriers.
  // Threads of ours are joined or detached knowingly; the process may end while a rank that hangs is left behind.
  return "ignore_noninstrumented_modules=1:report_thread_leaks=0:second_deadlock_stack=1:exitcode=99";
}
}
