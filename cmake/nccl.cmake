# libfaultline_nccl.so, optional: NCCL as a transport of `faultline race` and of gradients in `faultline train`. It links
# torch_cuda and needs the headers of CUDA's runtime and of NCCL: those of the wheels that torch itself came with, else the
# toolkit's; -DFAULTLINE_NCCL_INCLUDE=DIR names another folder of nccl.h. libfaultline.so loads it when NCCL is wanted; without
# a CUDA torch or without the headers it is left out. For a ROCm build of torch DIR is RCCL's (/opt/rocm/include/rccl): its
# header compiles in NCCL's place (docs/hardware.md says how that is known).
set(FAULTLINE_NCCL_INCLUDE "" CACHE PATH "folder of nccl.h: NCCL's or RCCL's; empty: the one that torch's wheels or the toolkit bring")
if(FAULTLINE_HIP)
  if(NOT EXISTS ${FAULTLINE_NCCL_INCLUDE}/nccl.h)
    message(STATUS "built without RCCL: -DFAULTLINE_NCCL_INCLUDE=DIR names the folder of its nccl.h (race from Python needs none)")
    return()
  endif()
  add_library(faultline_nccl SHARED src/cluster/nccl/nccl_module.cpp)
  target_compile_definitions(faultline_nccl PRIVATE FMT_HEADER_ONLY USE_ROCM __HIP_PLATFORM_AMD__)
  target_include_directories(faultline_nccl SYSTEM PRIVATE ${FAULTLINE_NCCL_INCLUDE} /opt/rocm/include)
  target_link_libraries(faultline_nccl PRIVATE torch ${TORCH_ROOT}/lib/libtorch_hip.so ${TORCH_ROOT}/lib/libc10_hip.so)
  return()
endif()
set(wheels ${TORCH_ROOT}/../nvidia)
unset(NCCL_INCLUDE CACHE)  # another environment may be in use since
unset(CUDART_INCLUDE CACHE)
find_path(NCCL_INCLUDE nccl.h PATHS ${FAULTLINE_NCCL_INCLUDE} NO_DEFAULT_PATH)
if(FAULTLINE_NCCL_INCLUDE AND NOT NCCL_INCLUDE)
  message(FATAL_ERROR "FAULTLINE_NCCL_INCLUDE=${FAULTLINE_NCCL_INCLUDE}: there is no nccl.h in it")
endif()
find_path(NCCL_INCLUDE nccl.h PATHS ${wheels}/nccl/include NO_DEFAULT_PATH)
find_path(NCCL_INCLUDE nccl.h PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} /usr/local/cuda/include)
# torch's wheels bring the runtime's headers without crt/, which they include: a toolkit has both.
find_path(CUDART_INCLUDE crt/host_config.h PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} NO_DEFAULT_PATH)
find_path(CUDART_INCLUDE crt/host_config.h PATHS ${wheels}/cu13/include ${wheels}/cuda_runtime/include /usr/local/cuda/include)
if(NOT EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so OR NOT NCCL_INCLUDE OR NOT CUDART_INCLUDE)
  message(STATUS "no CUDA torch, nccl.h or headers of CUDA's runtime: built without NCCL (race then has threads and gloo, train gloo)")
  return()
endif()
message(STATUS "NCCL through ${NCCL_INCLUDE}/nccl.h")
add_library(faultline_nccl SHARED src/cluster/nccl/nccl_module.cpp)
target_compile_definitions(faultline_nccl PRIVATE FMT_HEADER_ONLY)  # of torch's own headers; a library of its own
target_include_directories(faultline_nccl SYSTEM PRIVATE ${NCCL_INCLUDE} ${CUDART_INCLUDE})
target_link_libraries(faultline_nccl PRIVATE torch ${TORCH_ROOT}/lib/libtorch_cuda.so ${TORCH_ROOT}/lib/libc10_cuda.so)
set_target_properties(faultline_nccl PROPERTIES BUILD_RPATH "${TORCH_ROOT}/lib")
