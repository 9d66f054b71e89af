// SQLite as an RAII value: a connection, a prepared statement, a transaction. Every result code but the expected ones
// becomes a RuntimeFailure with the database's path and SQLite's words; a damaged file is one more failed call.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace faultline::record {

class Database {
 public:
  enum class Access { kWrite, kRead };

  // kWrite: creates what is not there; synchronous=FULL (a committed trial survives a power cut, which NORMAL does not
  // promise under WAL), foreign keys, and 30 s of patience with another writer.
  // kRead: neither the file nor its folder is touched, unless somebody is writing there (Note [Reading a store]).
  explicit Database(const std::filesystem::path& path, Access access = Access::kWrite);

  // Changes the file, so its owner is asked for first.
  void switch_to_wal();

  // After reading: RuntimeFailure where somebody wrote meanwhile and we did not read as one of several.
  void expect_unchanged();

  void execute(const char* sql);
  int64_t integer(const char* sql);  // the first column of the first row
  std::string text(const char* sql);

  [[noreturn]] void fail(std::string_view doing);
  sqlite3* get() const { return connection_.get(); }
  const std::string& path() const { return path_; }

 private:
  void open(int flags, const std::string& name);
  struct Close {
    void operator()(sqlite3* connection) const;  // not here: programs see no sqlite3
  };
  std::string path_;
  std::unique_ptr<sqlite3, Close> connection_;
  std::optional<std::filesystem::file_time_type> read_as_of_;
};

class Statement {
 public:
  Statement(Database& database, std::string_view sql);

  // Parameters count from 1, columns from 0, as in SQLite.
  Statement& bind(int parameter, int64_t value);
  Statement& bind(int parameter, double value);
  Statement& bind(int parameter, std::string_view value);

  bool step();  // true: a row is there to be read
  int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  double real(int column) const { return sqlite3_column_double(statement_.get(), column); }
  std::string text(int column) const;
  bool is_null(int column) const { return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL; }

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  void check(int code);

  Database& database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

// Takes the write lock at once (a later upgrade could fail with a deadlock); rolls back unless committed.
class Transaction {
 public:
  explicit Transaction(Database& database);
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

}  // namespace faultline::record
