// libfaultline_parquet.so: reads parquet with the Arrow that comes inside the pyarrow wheel and hands rows out as JSON.
// Untrusted input: the counts of the metadata are checked before anything is read, Arrow's memory is capped, each
// column is read by itself (so that an error can name it) and validated in full, UTF-8 included, before a value is
// touched.
#include <arrow/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "task/parquet/interface.h"

namespace {

using faultline::Json;

using arrow::internal::checked_cast;

constexpr int64_t kMaxRows = 10'000'000;
constexpr int64_t kMaxMemory = int64_t{2} << 30;
constexpr std::size_t kMaxText = std::size_t{1} << 30;

// A cell. Types that no task needs become an object that says so: whoever wants a string there will refuse it.
Json cell(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return nullptr;
  switch (array.type_id()) {
    case arrow::Type::BOOL: return checked_cast<const arrow::BooleanArray&>(array).Value(i);
    case arrow::Type::INT32: return checked_cast<const arrow::Int32Array&>(array).Value(i);
    case arrow::Type::INT64: return checked_cast<const arrow::Int64Array&>(array).Value(i);
    case arrow::Type::DOUBLE: return checked_cast<const arrow::DoubleArray&>(array).Value(i);
    case arrow::Type::STRING: return checked_cast<const arrow::StringArray&>(array).GetString(i);
    case arrow::Type::LARGE_STRING: return checked_cast<const arrow::LargeStringArray&>(array).GetString(i);
    case arrow::Type::LIST: {
      const auto& list = checked_cast<const arrow::ListArray&>(array);
      Json items = Json::array();
      for (int64_t k = list.value_offset(i); k < list.value_offset(i + 1); ++k)
        items.push_back(cell(*list.values(), k));
      return items;
    }
    case arrow::Type::STRUCT: {
      const auto& record = checked_cast<const arrow::StructArray&>(array);
      Json fields = Json::object();
      for (int k = 0; k < record.num_fields(); ++k)
        fields[record.struct_type()->field(k)->name()] = cell(*record.field(k), i);
      return fields;
    }
    default: return Json{{"type", array.type()->ToString()}};
  }
}

struct Column {
  std::string name;
  std::vector<int> leaves;  // of the parquet schema
};

std::vector<Column> columns_of(const parquet::SchemaDescriptor& schema, const std::vector<std::string>& wanted) {
  std::vector<Column> columns;
  for (const std::string& name : wanted) {
    Column column{name, {}};
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
      if (schema.GetColumnRoot(leaf)->name() == name) column.leaves.push_back(leaf);
    }
    if (!column.leaves.empty()) columns.push_back(std::move(column));
  }
  return columns;
}

arrow::Status check_counts(const parquet::FileMetaData& metadata) {
  int64_t sum = 0;
  for (int group = 0; group < metadata.num_row_groups(); ++group) {
    const int64_t rows = metadata.RowGroup(group)->num_rows();
    if (rows < 0 || rows > kMaxRows)
      return arrow::Status::Invalid("row group ", group, " claims ", rows, " rows; at most ", kMaxRows, " are read");
    sum += rows;
    if (sum > kMaxRows) return arrow::Status::Invalid("more than ", kMaxRows, " rows");
  }
  if (sum != metadata.num_rows())
    return arrow::Status::Invalid("the file claims ", metadata.num_rows(), " rows, its row groups hold ", sum);
  return arrow::Status::OK();
}

arrow::Result<std::shared_ptr<arrow::Array>> read_column(parquet::arrow::FileReader& reader, int group,
                                                         const Column& column, int64_t rows, arrow::MemoryPool* pool) {
  ARROW_ASSIGN_OR_RAISE(auto table, reader.ReadRowGroup(group, column.leaves));
  ARROW_ASSIGN_OR_RAISE(table, table->CombineChunks(pool));
  if (table->num_columns() != 1 || table->num_rows() != rows || table->column(0)->num_chunks() > 1)
    return arrow::Status::Invalid(table->num_rows(), " values where the row group has ", rows);
  if (rows == 0) return nullptr;
  auto array = table->column(0)->chunk(0);
  ARROW_RETURN_NOT_OK(array->ValidateFull());
  return array;
}

arrow::Status append_rows(parquet::arrow::FileReader& reader, int group, const std::vector<Column>& columns,
                          int64_t rows, arrow::MemoryPool* pool, std::string& text) {
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const Column& column : columns) {
    const std::string place = "column '" + column.name + "', row group " + std::to_string(group) + ": ";
    try {
      auto array = read_column(reader, group, column, rows, pool);
      if (!array.ok()) return array.status().WithMessage(place, array.status().message());
      arrays.push_back(*array);
    } catch (const std::exception& error) {
      return arrow::Status::Invalid(place, error.what());
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    Json record = Json::object();
    for (std::size_t k = 0; k < columns.size(); ++k) record[columns[k].name] = cell(*arrays[k], row);
    text += record.dump(-1, ' ', false, Json::error_handler_t::replace);
    text += '\n';
    if (text.size() > kMaxText) return arrow::Status::Invalid("more than ", kMaxText, " bytes of text");
  }
  return arrow::Status::OK();
}

arrow::Result<std::string> read_rows(const std::string& file, const std::vector<std::string>& wanted) {
  arrow::MemoryPool* shared = arrow::default_memory_pool();  // others in this process may hold some of it
  arrow::CappedMemoryPool pool(shared, shared->bytes_allocated() + kMaxMemory);
  parquet::ReaderProperties properties(&pool);
  properties.set_page_checksum_verification(true);
  parquet::arrow::FileReaderBuilder builder;
  ARROW_RETURN_NOT_OK(builder.OpenFile(file, /*memory_map=*/false, properties));
  // One thread: Arrow's own ones may still end a read that is done with when the reader goes away, and crash.
  parquet::ArrowReaderProperties alone(/*use_threads=*/false);
  alone.set_pre_buffer(false);
  builder.memory_pool(&pool)->properties(alone);
  ARROW_ASSIGN_OR_RAISE(const auto reader, builder.Build());
  const auto metadata = reader->parquet_reader()->metadata();
  ARROW_RETURN_NOT_OK(check_counts(*metadata));
  const std::vector<Column> columns = columns_of(*metadata->schema(), wanted);
  std::string text;
  for (int group = 0; group < metadata->num_row_groups(); ++group) {
    ARROW_RETURN_NOT_OK(append_rows(*reader, group, columns, metadata->RowGroup(group)->num_rows(), &pool, text));
  }
  return text;
}

int return_result(std::string_view result, int code, char** text, std::size_t* size) {
  *text = static_cast<char*>(std::malloc(result.size() + 1));
  if (*text == nullptr) return 1;
  std::memcpy(*text, result.data(), result.size());
  (*text)[result.size()] = '\0';
  *size = result.size();
  return code;
}

}  // namespace

int faultline_parquet_rows(const char* file, const char* const* columns, std::size_t column_count, char** text,
                           std::size_t* size) {
  *text = nullptr;
  *size = 0;
  try {
    const auto rows = read_rows(file, {columns, columns + column_count});
    if (!rows.ok()) return return_result("not readable as parquet: " + rows.status().message(), 1, text, size);
    return return_result(*rows, 0, text, size);
  } catch (const std::exception& error) {
    return return_result(std::string_view(error.what()), 1, text, size);
  } catch (...) {
    return return_result("an unknown error", 1, text, size);
  }
}

void faultline_parquet_free(char* text) { std::free(text); }
