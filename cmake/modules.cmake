# The modules without torch: object libraries, so that their tests link without libtorch and start at once.
module_sources(base base_sources)
if(FAULTLINE_FUZZ)
  list(FILTER base_sources EXCLUDE REGEX "/(stats|progress|schedule|distributions)[^/]*$")  # clang 14 and libstdc++ 12 disagree about ranges
endif()
add_library(faultline_base OBJECT ${base_sources})
module_sources(record record_sources)
add_library(faultline_record OBJECT ${record_sources})
if(NOT FAULTLINE_FUZZ)
  module_sources(report report_sources)
  add_library(faultline_report OBJECT ${report_sources})
endif()
# What a program that uses these modules links: Debian's archives, whole, with their symbols hidden.
add_library(faultline_third_party INTERFACE)
target_link_libraries(faultline_third_party INTERFACE ${YAML_STATIC} ${SQLITE_STATIC} ${PCRE2_STATIC} ${UTF8PROC_STATIC} m dl Threads::Threads)
