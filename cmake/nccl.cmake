# libfaultline_nccl.so, optional: NCCL as a transport of `faultline race` and of gradients in `faultline train`. It links
# torch_cuda and needs the headers of CUDA's runtime and of NCCL: those of the wheels that torch itself came with, else the
# toolkit's. libfaultline.so loads it when NCCL is wanted; without a CUDA torch or without the headers it is left out.
set(wheels ${TORCH_ROOT}/../nvidia)
unset(NCCL_INCLUDE CACHE)  # another environment may be in use since
unset(CUDART_INCLUDE CACHE)
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
