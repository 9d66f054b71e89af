# The CUDA kernels: compiled without any torch header (raw pointers and a stream), for sm_80 and sm_90, with IEEE
# arithmetic and no contraction, because their bits must equal the CPU's. The runtime is linked statically.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know nvcc 13
file(GLOB cuda_sources CONFIGURE_DEPENDS src/numeric/cuda/*.cu)
add_library(faultline_cuda OBJECT ${cuda_sources})
target_compile_options(faultline_cuda PRIVATE -fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall,-fPIC -Werror=all-warnings)
# The model's kernels are free to contract and reorder, because nobody compares their bits with the CPU's; all but the
# sampler, which draws the same tokens on every device.
file(GLOB model_cuda_sources CONFIGURE_DEPENDS src/model/cuda/*.cu)
add_library(faultline_model_cuda OBJECT ${model_cuda_sources})
target_compile_options(faultline_model_cuda PRIVATE -O3 --expt-relaxed-constexpr -Xcompiler=-Wall,-fPIC -Werror=all-warnings)
set_source_files_properties(src/model/cuda/sample.cu PROPERTIES COMPILE_OPTIONS -fmad=false)
# One by one: they include no torch, are the longest files of the build, and name their constants alike.
set_target_properties(faultline_cuda faultline_model_cuda PROPERTIES UNITY_BUILD OFF)
