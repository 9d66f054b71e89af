# The kernels of the faults for AMD GPUs: the CUDA sources compiled as HIP by hipcc, with CUDA's words from
# src/numeric/cuda/hip_shim, for a torch that is a ROCm build (it calls its GPUs cuda, too). The model's own kernels use
# NVIDIA's matrix instructions and are left out, NCCL's module as well: `python -m faultline.race --backend nccl` is RCCL
# there. Never run: no such GPU was at hand (docs/hardware.md). tests/compile_hip.py compiles the same sources so.
if(NOT EXISTS ${TORCH_ROOT}/lib/libtorch_hip.so)
  message(FATAL_ERROR "FAULTLINE_HIP: torch ${TORCH_VERSION} of ${FAULTLINE_PYTHON} is no ROCm build (it has no libtorch_hip.so); "
                      "name a Python that has one, PYTHON=… ./dev build rocm, or build for what is here: ./dev build")
endif()
if(FAULTLINE_CUDA)
  message(FATAL_ERROR "FAULTLINE_HIP and FAULTLINE_CUDA are two devices; choose one")
endif()
find_program(HIPCC hipcc PATHS /opt/rocm/bin)
if(NOT HIPCC)
  message(FATAL_ERROR "FAULTLINE_HIP: there is no hipcc; install ROCm, or Debian's package hipcc")
endif()
find_library(AMDHIP amdhip64 PATHS ${TORCH_ROOT}/lib /opt/rocm/lib REQUIRED)
set(FAULTLINE_HIP_ARCHITECTURES gfx90a gfx1030 CACHE STRING "AMD GPUs to compile for; gfx942 takes a hipcc of ROCm 6")
set(hip_shim ${CMAKE_SOURCE_DIR}/src/numeric/cuda/hip_shim)
file(STRINGS ${hip_shim}/options hip_options)
list(TRANSFORM FAULTLINE_HIP_ARCHITECTURES PREPEND --offload-arch= OUTPUT_VARIABLE hip_targets)
file(GLOB hip_sources CONFIGURE_DEPENDS src/numeric/cuda/*.cu)
file(GLOB hip_headers CONFIGURE_DEPENDS src/numeric/*.h src/numeric/cuda/*.cuh src/numeric/cuda/*.h ${hip_shim}/*)
foreach(source ${hip_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/hip/${name}.o)
  add_custom_command(OUTPUT ${object} DEPENDS ${source} ${hip_headers}
                     COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/hip
                     COMMAND ${HIPCC} -x hip ${hip_targets} ${hip_options} -fPIC -include ${hip_shim}/cuda_runtime.h -I${hip_shim}
                             -I${CMAKE_SOURCE_DIR}/src -c ${source} -o ${object}
                     COMMENT "Compiling ${name}.cu as HIP" VERBATIM)
  list(APPEND hip_objects ${object})
endforeach()
