# The torch of one Python environment as the imported target `torch`. The wheel's own TorchConfig.cmake insists on a CUDA
# toolkit whenever the wheel was built with CUDA; we need only its headers and two libraries (libtorch.so is a shell that pulls in torch_cuda), so we name them directly.
# Nothing links torch_cuda: our CUDA code reaches streams through c10's device-generic interface, so one libfaultline.so
# serves CPU-only and CUDA wheels alike, and the program starts without loading two gigabytes of CUDA libraries.
if(NOT FAULTLINE_PYTHON)
  message(FATAL_ERROR "set FAULTLINE_PYTHON to a Python that has torch (./dev build does)")
endif()
execute_process(
  COMMAND ${FAULTLINE_PYTHON} -c "import torch, os; print(os.path.dirname(torch.__file__)); print(torch.__version__)"
  OUTPUT_VARIABLE torch_answer OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_result)
if(NOT torch_result EQUAL 0)
  message(FATAL_ERROR "${FAULTLINE_PYTHON} cannot import torch")
endif()
string(REPLACE "\n" ";" torch_answer "${torch_answer}")
list(GET torch_answer 0 TORCH_ROOT)
list(GET torch_answer 1 TORCH_VERSION)

if(NOT CMAKE_CROSSCOMPILING)
  try_run(shared_runtime runtime_probe_compiled ${CMAKE_BINARY_DIR}/runtime_probe ${CMAKE_SOURCE_DIR}/cmake/runtime_probe.cpp)
  if(NOT shared_runtime EQUAL 0)
    message(FATAL_ERROR "programs of ${CMAKE_CXX_COMPILER} do not use the shared libstdc++, as torch does, and would abort with it: "
                        "choose another compiler, as in CXX=/usr/bin/g++, or leave out -static-libstdc++")
  endif()
endif()

add_library(torch INTERFACE IMPORTED)
target_include_directories(torch SYSTEM INTERFACE ${TORCH_ROOT}/include ${TORCH_ROOT}/include/torch/csrc/api/include)
target_link_libraries(torch INTERFACE ${TORCH_ROOT}/lib/libtorch_cpu.so ${TORCH_ROOT}/lib/libc10.so)
# libtorch_cpu.so of a CUDA wheel itself needs libcudart and libcupti, which it finds by its own run path.
target_link_options(torch INTERFACE -Wl,--no-as-needed -Wl,--allow-shlib-undefined -Wl,--unresolved-symbols=ignore-in-shared-libs)
# Versions that we are tested with; another one is tried, and refused here where it has not what the taps need.
set(tested_torches 2.11 2.13 2.15)
set(tested_names "2.11, 2.13 and 2.15")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_minor "${TORCH_VERSION}")
if(NOT torch_minor IN_LIST tested_torches)
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  try_compile(torch_serves ${CMAKE_BINARY_DIR}/torch_probe ${CMAKE_SOURCE_DIR}/cmake/torch_probe.cpp
              CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${TORCH_ROOT}/include;${TORCH_ROOT}/include/torch/csrc/api/include"
              OUTPUT_VARIABLE torch_complaints CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
  unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
  if(NOT torch_serves)
    message(FATAL_ERROR "torch ${TORCH_VERSION} in ${TORCH_ROOT} has not the dispatcher's interface that the taps need: "
                        "faultline is tested with torch ${tested_names}; install one of these\n${torch_complaints}")
  endif()
  message(WARNING "torch ${TORCH_VERSION}: faultline is tested with ${tested_names}; this one is tried")
endif()
# Beside the library, for python/faultline/_library.py: a library for another torch is refused with a sentence.
file(WRITE ${CMAKE_BINARY_DIR}/libfaultline.torch "${TORCH_VERSION}\n")
message(STATUS "torch ${TORCH_VERSION} in ${TORCH_ROOT}")
