# fmt is compiled once (base/fmt.cpp): as a header alone it takes a third of the time of every file. torch's headers bring
# one of their own; the modules without torch take the same, because one library cannot hold two.
if(TORCH_ROOT AND EXISTS ${TORCH_ROOT}/include/fmt/format-inl.h)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/torch_fmt)
  file(CREATE_LINK ${TORCH_ROOT}/include/fmt ${CMAKE_BINARY_DIR}/torch_fmt/fmt SYMBOLIC)
  include_directories(BEFORE SYSTEM $<$<COMPILE_LANGUAGE:CXX>:${CMAKE_BINARY_DIR}/torch_fmt>)
endif()
# The modules without torch: object libraries, so that their tests link without libtorch and start at once.
module_sources(base base_sources)
if(FAULTLINE_FUZZ)
  list(FILTER base_sources EXCLUDE REGEX "/(stats|schedule)/|/progress.cpp$")  # clang 14 and libstdc++ 12 disagree about ranges
endif()
add_library(faultline_base OBJECT ${base_sources})
module_sources(record record_sources)
add_library(faultline_record OBJECT ${record_sources})
if(NOT FAULTLINE_FUZZ)
  module_sources(report report_sources)
  add_library(faultline_report OBJECT ${report_sources})
  target_precompile_headers(faultline_base PRIVATE <fmt/format.h> <nlohmann/json.hpp>)
  target_precompile_headers(faultline_record REUSE_FROM faultline_base)
  target_precompile_headers(faultline_report REUSE_FROM faultline_base)
endif()
# What a program that uses these modules links: Debian's archives, whole, with their symbols hidden.
add_library(faultline_third_party INTERFACE)
target_link_libraries(faultline_third_party INTERFACE ${YAML_STATIC} ${SQLITE_STATIC} ${PCRE2_STATIC} ${UTF8PROC_STATIC} m dl Threads::Threads)
