# Tests beside the code: one GoogleTest executable a module.
find_package(GTest REQUIRED)
file(GLOB_RECURSE base_tests CONFIGURE_DEPENDS src/base/*_test.cpp)
add_executable(base_test ${base_tests} $<TARGET_OBJECTS:faultline_base>)
target_link_libraries(base_test PRIVATE faultline_third_party GTest::gtest GTest::gtest_main)
file(GLOB record_tests CONFIGURE_DEPENDS src/record/*_test.cpp)
set_source_files_properties(src/record/failing_disk_test.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # has its own fsync and the like
add_executable(record_test ${record_tests} $<TARGET_OBJECTS:faultline_base> $<TARGET_OBJECTS:faultline_record>)
target_link_libraries(record_test PRIVATE faultline_third_party GTest::gtest GTest::gtest_main)
file(GLOB report_tests CONFIGURE_DEPENDS src/report/*_test.cpp)
add_executable(report_test ${report_tests} $<TARGET_OBJECTS:faultline_base> $<TARGET_OBJECTS:faultline_record>
               $<TARGET_OBJECTS:faultline_report>)
target_link_libraries(report_test PRIVATE faultline_third_party GTest::gtest GTest::gtest_main)

foreach(module cluster trials numeric tap aqn race triage model task train lab experiment diagnose screen)
  file(GLOB_RECURSE module_tests CONFIGURE_DEPENDS src/${module}/*_test.cpp)
  if(NOT module_tests)
    continue()
  endif()
  add_executable(${module}_test ${module_tests})
  set_target_properties(${module}_test PROPERTIES BUILD_RPATH "$ORIGIN/..;$ORIGIN;${TORCH_ROOT}/lib")
  target_precompile_headers(${module}_test REUSE_FROM faultline_lib)
  target_compile_options(${module}_test PRIVATE ${torch_options})
  target_link_libraries(${module}_test PRIVATE faultline_lib torch ${YAML_STATIC} GTest::gtest GTest::gtest_main)
endforeach()

# NVML as screen_test meets it: answers, refusals, a lost device (tests/nvml_stand_in.cpp).
add_library(faultline_nvml_stand_in MODULE tests/nvml_stand_in.cpp)
add_dependencies(screen_test faultline_nvml_stand_in)

# Operators that only tests call: the model, tokenizer, tasks and optimizer from Python (tests/testing_ops.py).
file(GLOB testing_sources CONFIGURE_DEPENDS tests/ops/*.cpp)
add_library(faultline_testing SHARED ${testing_sources})
set_target_properties(faultline_testing PROPERTIES BUILD_RPATH "$ORIGIN;${TORCH_ROOT}/lib")
target_precompile_headers(faultline_testing REUSE_FROM faultline_lib)
target_compile_options(faultline_testing PRIVATE ${torch_options})
target_link_libraries(faultline_testing PRIVATE faultline_lib torch)

# A backend of torch for tests. It knows nothing of the lab (tests/toy_device.py).
file(GLOB backend_sources CONFIGURE_DEPENDS tests/backend/*.cpp)
add_library(faultline_toy SHARED ${backend_sources})
set_target_properties(faultline_toy PROPERTIES BUILD_RPATH "${TORCH_ROOT}/lib")
target_precompile_headers(faultline_toy REUSE_FROM faultline_lib)
target_compile_options(faultline_toy PRIVATE ${torch_options})
target_link_libraries(faultline_toy PRIVATE torch)

# All fuzz targets in one program, fed with their corpora (base/fuzz_target.h).
file(GLOB_RECURSE fuzz_sources CONFIGURE_DEPENDS src/*_fuzz.cpp)
add_executable(replay_test tests/replay_test.cpp ${fuzz_sources})
target_compile_definitions(replay_test PRIVATE FAULTLINE_REPLAY FAULTLINE_CORPUS="${CMAKE_SOURCE_DIR}/tests/corpus")
set_target_properties(replay_test PROPERTIES BUILD_RPATH "$ORIGIN/..;$ORIGIN;${TORCH_ROOT}/lib" UNITY_BUILD OFF)
target_link_libraries(replay_test PRIVATE faultline_lib torch ${YAML_STATIC} GTest::gtest GTest::gtest_main)

file(GLOB bench_sources CONFIGURE_DEPENDS src/numeric/*_bench.cpp)
foreach(source ${bench_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  set_target_properties(${name} PROPERTIES BUILD_RPATH "$ORIGIN/..;$ORIGIN;${TORCH_ROOT}/lib")
  target_precompile_headers(${name} REUSE_FROM faultline_lib)
  target_compile_options(${name} PRIVATE ${torch_options})
  target_link_libraries(${name} PRIVATE faultline_lib torch)
endforeach()
