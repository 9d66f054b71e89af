# A sanitized build's programs get their options from tests/sanitizers.cpp, which must lie in the program itself.
get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
set_source_files_properties(tests/sanitizers.cpp PROPERTIES COMPILE_OPTIONS -fno-sanitize=all SKIP_PRECOMPILE_HEADERS ON)
foreach(target ${targets})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_sources(${target} PRIVATE tests/sanitizers.cpp)
  endif()
endforeach()
