// The C interface of libfaultline_parquet.so: only plain types and memory of its own cross it, never an exception.
#pragma once

#include <cstddef>

extern "C" {

// 0: *text holds the named columns as JSON lines, one object a row; a column that the file lacks is left out.
// Else: *text is a sentence with column and row group, without the file's name. *text is null when memory ran out.
__attribute__((visibility("default"))) int faultline_parquet_rows(const char* file, const char* const* columns,
                                                                  std::size_t column_count, char** text,
                                                                  std::size_t* size);
__attribute__((visibility("default"))) void faultline_parquet_free(char* text);
}
