# One libFuzzer executable for each src/**/NAME_fuzz.cpp: with base, record, and what NAME_fuzz tests beyond them (files
# that need no torch).
set(tokenizer_fuzz_parts unicode word_patterns regex pretokenizer added_tokens bpe tokenizer_spec json_field tokenizer_json
    tokenizer_files chat chat_template stream_decoder tokenizer)
list(TRANSFORM tokenizer_fuzz_parts REPLACE "(.+)" "src/model/tokenizer/\\1.cpp")
set(gguf_fuzz_parts ${tokenizer_fuzz_parts} src/model/checkpoint/gguf_parser.cpp src/model/checkpoint/gguf_blocks.cpp src/model/checkpoint/gguf.cpp src/model/checkpoint/gguf_config.cpp
    src/model/config.cpp src/model/tokenizer/tokenizer_gguf.cpp)
set(folder_fuzz_parts src/model/config.cpp src/model/checkpoint/folder_config.cpp src/model/checkpoint/safetensors_folder.cpp)
set(safetensors_fuzz_parts)
set(gsm8k_fuzz_parts src/task/gsm8k_records.cpp src/task/reward.cpp)
set(bundles_fuzz_parts src/triage/bundles.cpp)
set(answer_fuzz_parts src/triage/answer.cpp)
set(metrics_fuzz_parts src/triage/metrics_file.cpp)
set(parquet_fuzz_parts src/task/parquet_rows.cpp src/task/data_files.cpp src/task/gsm8k_records.cpp src/task/reward.cpp)
set_source_files_properties(src/task/data_files.cpp PROPERTIES COMPILE_DEFINITIONS FAULTLINE_SOURCE_DATA="${CMAKE_SOURCE_DIR}/data")
file(GLOB_RECURSE fuzz_sources CONFIGURE_DEPENDS src/*_fuzz.cpp)
list(FILTER fuzz_sources EXCLUDE REGEX "/recipe_fuzz\\.cpp$")  # links half of the library, and torch: fuzz_recipe.cmake
foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source} ${${name}_parts} $<TARGET_OBJECTS:faultline_base> $<TARGET_OBJECTS:faultline_record>)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_libraries(${name} PRIVATE faultline_third_party)
endforeach()
# The module that parquet_fuzz loads, from beside itself; Arrow is as the wheel has it, not instrumented.
if(FAULTLINE_PYTHON)
  include(cmake/parquet.cmake)
endif()
target_compile_options(faultline_base PRIVATE -fsanitize=fuzzer-no-link,address,undefined)
target_compile_options(faultline_record PRIVATE -fsanitize=fuzzer-no-link,address,undefined)
