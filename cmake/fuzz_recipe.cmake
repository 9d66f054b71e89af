# recipe_fuzz under libFuzzer. It links the library and with it torch, whose headers clang 14 and libstdc++ 12 do not get
# through. So g++ compiles it, and the modules that read what people write, with the sanitizers and g++'s own coverage;
# tests/gcc_coverage.cpp hands that to libFuzzer, which is all that clang is asked for. The rest is as in every build.
execute_process(COMMAND clang++ --print-runtime-dir OUTPUT_VARIABLE clang_runtime OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_library(LIBFUZZER NAMES libclang_rt.fuzzer-${CMAKE_SYSTEM_PROCESSOR}.a libclang_rt.fuzzer.a PATHS ${clang_runtime} NO_DEFAULT_PATH REQUIRED)
set(fuzz_sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined)
set(fuzz_options ${fuzz_sanitizers} -fsanitize-coverage=trace-pc,trace-cmp)
foreach(module base record report)  # one precompiled header, hence alike
  target_compile_options(faultline_${module} PRIVATE ${fuzz_options})
endforeach()
foreach(module site aqn experiment triage recipe)
  module_sources(${module} module_files)
  list(APPEND fuzzed_files ${module_files})
endforeach()
file(GLOB_RECURSE schemas CONFIGURE_DEPENDS src/*_schema.cpp)
list(FILTER schemas EXCLUDE REGEX "/src/base/")
list(APPEND fuzzed_files ${schemas} src/numeric/rule.cpp src/numeric/short_form.cpp src/numeric/fault.cpp src/numeric/catalogue.cpp src/numeric/format_table.cpp src/tap/plan_rule.cpp)
set_source_files_properties(${fuzzed_files} PROPERTIES COMPILE_OPTIONS "${fuzz_options}" SKIP_PRECOMPILE_HEADERS ON)
target_link_options(faultline_lib PRIVATE ${fuzz_sanitizers})
target_link_libraries(faultline_lib PRIVATE -Wl,--unresolved-symbols=ignore-all)  # the program has the counters
add_executable(recipe_fuzz src/plugin/recipe_fuzz.cpp tests/gcc_coverage.cpp)
set_target_properties(recipe_fuzz PROPERTIES BUILD_RPATH "$ORIGIN;${TORCH_ROOT}/lib" ENABLE_EXPORTS ON)
# libFuzzer has a __sanitizer_cov_trace_pc that says it is no longer supported; ours comes first and is taken.
target_link_options(recipe_fuzz PRIVATE ${fuzz_sanitizers} -Wl,--allow-multiple-definition)
target_link_libraries(recipe_fuzz PRIVATE faultline_lib torch ${YAML_STATIC} ${LIBFUZZER})
