# libfaultline.so (everything below cli/) and the program, a thin main.
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
                OUTPUT_VARIABLE faultline_commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
configure_file(${CMAKE_SOURCE_DIR}/cmake/version.h.in ${CMAKE_BINARY_DIR}/generated/version.h)

# The CPU kernels hold no torch header either; each instruction set compiles the same file into a namespace of its own.
file(GLOB cpu_kernel_sources CONFIGURE_DEPENDS src/numeric/cpu/*.cpp)
list(FILTER cpu_kernel_sources EXCLUDE REGEX "_(test|fuzz|bench)\\.cpp$")
set(kernel_options -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math)
set(isa_portable)
set(isa_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(isa_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mbmi2 -mprefer-vector-width=512)
set(isa_neon -DFAULTLINE_NEON)  # portable, with a part written by hand
set(numeric_isas portable)
set(model_isas portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(numeric_isas portable avx2 avx512)
  set(model_isas portable avx2 avx512 avx512bf16 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")  # NEON is part of the baseline
  set(numeric_isas portable neon)
  set(model_isas portable armbf16)
endif()
foreach(isa ${numeric_isas})
  add_library(faultline_cpu_${isa} OBJECT ${cpu_kernel_sources})
  set_target_properties(faultline_cpu_${isa} PROPERTIES UNITY_BUILD OFF)
  target_compile_options(faultline_cpu_${isa} PRIVATE ${kernel_options} ${isa_${isa}})
  target_compile_definitions(faultline_cpu_${isa} PRIVATE FAULTLINE_ISA=${isa})
  list(APPEND kernel_objects $<TARGET_OBJECTS:faultline_cpu_${isa}>)
endforeach()

# The model's CPU kernels likewise, for two more sets: bf16 dot products, and tiles.
file(GLOB model_kernel_sources CONFIGURE_DEPENDS src/model/cpu/*.cpp)
set(isa_avx512bf16 ${isa_avx512} -mavx512bf16)
set(isa_amx ${isa_avx512bf16} -mamx-tile -mamx-bf16)
set(isa_armbf16 -march=armv8.2-a+bf16)
foreach(isa ${model_isas})
  add_library(faultline_model_cpu_${isa} OBJECT ${model_kernel_sources})
  set_target_properties(faultline_model_cpu_${isa} PROPERTIES UNITY_BUILD OFF)
  # g++ 12 takes the undefined registers in its own AVX-512 header for mistakes.
  target_compile_options(faultline_model_cpu_${isa} PRIVATE ${kernel_options} ${isa_${isa}} -Wno-uninitialized
                         -Wno-maybe-uninitialized)
  target_compile_definitions(faultline_model_cpu_${isa} PRIVATE FAULTLINE_ISA=${isa})
  list(APPEND kernel_objects $<TARGET_OBJECTS:faultline_model_cpu_${isa}>)
endforeach()

# Batches keep to a module, so that a new file moves no file of another one into a batch where a name is taken.
foreach(module cluster site numeric recipe tap aqn race trials triage model task train lab experiment diagnose screen plugin)
  module_sources(${module} module_files)
  list(APPEND library_sources ${module_files})
  set(place 0)
  foreach(file ${module_files})
    math(EXPR batch "${place} / ${CMAKE_UNITY_BUILD_BATCH_SIZE}")
    set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${module}_${batch})
    math(EXPR place "${place} + 1")
  endforeach()
endforeach()
list(APPEND library_sources src/model/cuda/graph.cpp)  # a refusal where there is no CUDA
add_library(faultline_lib SHARED ${library_sources} ${kernel_objects}
            $<TARGET_OBJECTS:faultline_base> $<TARGET_OBJECTS:faultline_record> $<TARGET_OBJECTS:faultline_report>)
set_target_properties(faultline_lib PROPERTIES OUTPUT_NAME faultline DEFINE_SYMBOL "" UNITY_BUILD_MODE GROUP)
# at::parallel_for is a header template: without OpenMP it would run on one thread. The run-time library is the one that
# torch itself carries. Everything that shares the precompiled header has the same options.
set(torch_options -ffp-contract=off -fopenmp)
target_compile_options(faultline_lib PRIVATE ${torch_options})
target_include_directories(faultline_lib PRIVATE ${CMAKE_BINARY_DIR}/generated)
target_precompile_headers(faultline_lib PRIVATE <ATen/ATen.h> <torch/library.h> <fmt/format.h> <nlohmann/json.hpp>)
target_link_libraries(faultline_lib PRIVATE torch faultline_third_party)
target_link_options(faultline_lib PRIVATE -Wl,--exclude-libs,ALL)
set_source_files_properties(src/plugin/library.cpp PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_SOURCE_DIR}/include)  # the public header
set_source_files_properties(src/task/data_files.cpp PROPERTIES
                            COMPILE_DEFINITIONS FAULTLINE_SOURCE_DATA="${CMAKE_SOURCE_DIR}/data" SKIP_PRECOMPILE_HEADERS ON)
set_source_files_properties(src/model/checkpoint/weight_rows.cpp src/model/checkpoint/gguf_blocks.cpp src/train/adamw.cpp PROPERTIES COMPILE_OPTIONS -O3 SKIP_PRECOMPILE_HEADERS ON)
# Gloo's headers are not in the wheel; race/gloo_shim holds the declarations that libtorch's own header needs.
set_source_files_properties(src/cluster/gloo.cpp PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_SOURCE_DIR}/src/cluster/gloo_shim)
unset(GOMP CACHE)  # another environment may be in use since
find_library(GOMP NAMES libgomp.so.1 gomp PATHS ${TORCH_ROOT}/lib ${TORCH_ROOT}/../torch.libs REQUIRED NO_DEFAULT_PATH)
target_link_libraries(faultline_lib PUBLIC ${GOMP})
if(FAULTLINE_CUDA)
  target_sources(faultline_lib PRIVATE $<TARGET_OBJECTS:faultline_cuda> $<TARGET_OBJECTS:faultline_model_cuda>)
  set_source_files_properties(src/model/cuda/graph.cpp PROPERTIES INCLUDE_DIRECTORIES "${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}")
  set_property(SOURCE src/numeric/apply.cpp src/numeric/apply_cuda.cpp src/numeric/tensor_memory.cpp src/numeric/digest_tensor.cpp src/model/cuda_ops.cpp src/model/cuda/graph.cpp src/race/patterns.cpp APPEND PROPERTY COMPILE_DEFINITIONS FAULTLINE_WITH_CUDA)
  target_link_directories(faultline_lib PRIVATE ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
  target_link_libraries(faultline_lib PRIVATE cudart_static rt)
endif()

if(FAULTLINE_HIP)
  target_sources(faultline_lib PRIVATE ${hip_objects})
  set_source_files_properties(${hip_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set_property(SOURCE src/numeric/apply.cpp src/numeric/apply_cuda.cpp src/numeric/tensor_memory.cpp src/numeric/digest_tensor.cpp src/race/patterns.cpp APPEND PROPERTY COMPILE_DEFINITIONS FAULTLINE_WITH_CUDA)
  target_link_libraries(faultline_lib PRIVATE ${AMDHIP})
endif()

module_sources(cli cli_sources)
add_executable(faultline_program ${cli_sources})
set_target_properties(faultline_program PROPERTIES OUTPUT_NAME faultline BUILD_RPATH "$ORIGIN;${TORCH_ROOT}/lib")
target_include_directories(faultline_program PRIVATE ${CMAKE_BINARY_DIR}/generated)
target_precompile_headers(faultline_program REUSE_FROM faultline_lib)
target_compile_options(faultline_program PRIVATE ${torch_options})
target_link_libraries(faultline_program PRIVATE faultline_lib torch)
set_target_properties(faultline_lib PROPERTIES BUILD_RPATH "${TORCH_ROOT}/lib")
