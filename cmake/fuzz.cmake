# One libFuzzer executable for each src/**/NAME_fuzz.cpp, with base, record and those files of the model that need no torch.
set(model_parsers src/model/gguf_parser.cpp src/model/gguf_blocks.cpp)
file(GLOB fuzz_sources CONFIGURE_DEPENDS src/*/*_fuzz.cpp)
set(gsm8k_fuzz_parser src/task/gsm8k_records.cpp src/task/reward.cpp)  # what NAME_fuzz tests outside base/ and record/
foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source} ${${name}_parser} ${model_parsers} $<TARGET_OBJECTS:faultline_base> $<TARGET_OBJECTS:faultline_record>)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_libraries(${name} PRIVATE faultline_third_party)
endforeach()
target_compile_options(faultline_base PRIVATE -fsanitize=fuzzer-no-link,address,undefined)
target_compile_options(faultline_record PRIVATE -fsanitize=fuzzer-no-link,address,undefined)
