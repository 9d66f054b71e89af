# libfaultline_parquet.so, optional: linked against the Arrow inside the pyarrow wheel of FAULTLINE_PYTHON, with that
# wheel's C++ ABI. libfaultline.so loads it when a .parquet file is read; without pyarrow it is left out.
set(pyarrow_question [[
import glob, pyarrow
folder = pyarrow.get_library_dirs()[0]
arrow, parquet = (glob.glob(f"{folder}/lib{name}.so.[0-9]*")[0] for name in ("arrow", "parquet"))
print(pyarrow.get_include(), arrow, parquet, int(b"__cxx11" in open(parquet, "rb").read()), pyarrow.__version__, sep="\n")
]])
execute_process(COMMAND ${FAULTLINE_PYTHON} -c "${pyarrow_question}" OUTPUT_VARIABLE pyarrow_answer ERROR_QUIET
                OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE pyarrow_result)
if(NOT pyarrow_result EQUAL 0)
  message(STATUS "no pyarrow: built without parquet (tasks are then read from .jsonl)")
  return()
endif()
string(REPLACE "\n" ";" pyarrow_answer "${pyarrow_answer}")
list(GET pyarrow_answer 0 arrow_include)
list(GET pyarrow_answer 1 arrow_library)
list(GET pyarrow_answer 2 parquet_library)
list(GET pyarrow_answer 3 arrow_cxx11)
list(GET pyarrow_answer 4 arrow_version)
message(STATUS "parquet through pyarrow ${arrow_version}")
get_filename_component(arrow_folder ${arrow_library} DIRECTORY)
add_library(faultline_parquet SHARED src/task/parquet/parquet_module.cpp)
target_include_directories(faultline_parquet SYSTEM PRIVATE ${arrow_include})
target_compile_definitions(faultline_parquet PRIVATE _GLIBCXX_USE_CXX11_ABI=${arrow_cxx11})
target_compile_options(faultline_parquet PRIVATE -fvisibility=hidden -fvisibility-inlines-hidden)
target_link_libraries(faultline_parquet PRIVATE ${parquet_library} ${arrow_library})
set_target_properties(faultline_parquet PROPERTIES BUILD_RPATH "${arrow_folder}")
