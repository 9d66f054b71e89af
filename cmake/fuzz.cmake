# One libFuzzer executable for each src/**/NAME_fuzz.cpp: with base, record, and what NAME_fuzz tests beyond them (files
# that need no torch).
set(tokenizer_fuzz_parts unicode word_patterns regex pretokenizer added_tokens bpe tokenizer_spec json_field tokenizer_json
    tokenizer_files chat chat_template stream_decoder tokenizer)
list(TRANSFORM tokenizer_fuzz_parts REPLACE "(.+)" "src/model/\\1.cpp")
set(gguf_fuzz_parts src/model/gguf_parser.cpp src/model/gguf_blocks.cpp)
set(safetensors_fuzz_parts)
set(gsm8k_fuzz_parts src/task/gsm8k_records.cpp src/task/reward.cpp)
file(GLOB fuzz_sources CONFIGURE_DEPENDS src/*/*_fuzz.cpp)
foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source} ${${name}_parts} $<TARGET_OBJECTS:faultline_base> $<TARGET_OBJECTS:faultline_record>)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_libraries(${name} PRIVATE faultline_third_party)
endforeach()
target_compile_options(faultline_base PRIVATE -fsanitize=fuzzer-no-link,address,undefined)
target_compile_options(faultline_record PRIVATE -fsanitize=fuzzer-no-link,address,undefined)
