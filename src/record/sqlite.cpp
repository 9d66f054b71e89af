// cell_size_check and an untrusted schema make SQLite look before it believes a damaged or prepared file.
#include "record/sqlite.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "base/error.h"

namespace faultline::record {
namespace {

std::string_view remedy(int code) {
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return "; the file is damaged or no database: restore it from a copy, or start a new campaign";
    case SQLITE_FULL: return "; free some space and resume";
    case SQLITE_BUSY: return "; another process holds it: wait until it has finished";
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN: return "; check that the folder exists and is writable";
    default: return "";
  }
}

// Note [Reading a store]: SQLite cannot read a file in WAL mode without two more files beside it, and a reader that may
// not write leaves them there. Nobody needs them where nobody writes, which the absence of a -wal file shows; then the
// file is opened as one that does not change, and expect_unchanged() looks afterwards whether that was so.
std::string unchanging(const std::string& path) {
  std::string name = "file:";
  for (const char c : std::filesystem::absolute(path).string())
    name += c == '%' || c == '?' || c == '#' ? fmt::format("%{:02X}", static_cast<int>(c)) : std::string(1, c);
  return name + "?immutable=1";
}

}  // namespace

Database::Database(const std::filesystem::path& path, Access access) : path_(path.string()) {
  std::error_code ignored;
  if (access == Access::kWrite) {
    open(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, path_);
  } else if (std::filesystem::exists(path_ + "-wal", ignored)) {
    open(SQLITE_OPEN_READONLY, path_);
  } else {
    read_as_of_ = std::filesystem::last_write_time(path, ignored);
    open(SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, unchanging(path_));
  }
  sqlite3_extended_result_codes(get(), 1);
  sqlite3_busy_timeout(get(), 30000);
  execute(
      "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL;");
}

void Database::open(int flags, const std::string& name) {
  sqlite3* connection = nullptr;
  const int code = sqlite3_open_v2(name.c_str(), &connection, flags | SQLITE_OPEN_FULLMUTEX, nullptr);
  connection_.reset(connection);
  if (connection == nullptr) throw RuntimeFailure(fmt::format("{}: cannot open: out of memory", path_));
  if (code != SQLITE_OK) fail("open");
}

void Database::expect_unchanged() {
  std::error_code ignored;
  if (read_as_of_ && *read_as_of_ != std::filesystem::last_write_time(path_, ignored))
    throw RuntimeFailure(fmt::format("{}: was written to while it was read; read it again", path_));
}

// Two processes that open a new file together: SQLite answers the one that comes second with "busy" at once, without
// its usual wait, because waiting while holding a read lock could never end. So we wait, holding nothing.
void Database::switch_to_wal() {
  for (int attempt = 0;; ++attempt) {
    const int code = sqlite3_exec(get(), "PRAGMA journal_mode = WAL", nullptr, nullptr, nullptr);
    if (code == SQLITE_OK) break;
    if ((code & 0xFF) != SQLITE_BUSY || attempt == 3000) fail("switch to WAL");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (text("PRAGMA journal_mode") != "wal") fail("switch to WAL");
}

void Database::fail(std::string_view doing) {
  const int code = sqlite3_errcode(get());
  throw RuntimeFailure(fmt::format("{}: cannot {}: {}{}", path_, doing, sqlite3_errmsg(get()), remedy(code)));
}

void Database::execute(const char* sql) {
  if (sqlite3_exec(get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail(fmt::format("run '{}'", sql));
}

int64_t Database::integer(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string Database::text(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.text(0) : std::string();
}

Statement::Statement(Database& database, std::string_view sql) : database_(database) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(database.get(), sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
  statement_.reset(statement);
  if (code != SQLITE_OK || statement == nullptr) database.fail(fmt::format("prepare '{}'", sql));
}

void Statement::check(int code) {
  if (code != SQLITE_OK) database_.fail("bind a value");
}

Statement& Statement::bind(int parameter, int64_t value) {
  check(sqlite3_bind_int64(statement_.get(), parameter, value));
  return *this;
}

Statement& Statement::bind(int parameter, double value) {
  check(sqlite3_bind_double(statement_.get(), parameter, value));
  return *this;
}

Statement& Statement::bind(int parameter, std::string_view value) {
  // A null pointer would bind NULL; an empty string is a value.
  const char* data = value.data() == nullptr ? "" : value.data();
  check(sqlite3_bind_text64(statement_.get(), parameter, data, value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code != SQLITE_ROW && code != SQLITE_DONE) database_.fail(fmt::format("run '{}'", sqlite3_sql(statement_.get())));
  return code == SQLITE_ROW;
}

std::string Statement::text(int column) const {
  const unsigned char* data = sqlite3_column_text(statement_.get(), column);
  const int bytes = sqlite3_column_bytes(statement_.get(), column);
  return data == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(data), static_cast<size_t>(bytes));
}

Transaction::Transaction(Database& database) : database_(database) { database_.execute("BEGIN IMMEDIATE"); }

Transaction::~Transaction() {
  // Some errors (a full disk) have rolled back already; then this one has nothing to do.
  if (open_ && sqlite3_get_autocommit(database_.get()) == 0) {
    sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

void Transaction::commit() {
  database_.execute("COMMIT");
  open_ = false;
}

void Database::Close::operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }

void Statement::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

}  // namespace faultline::record
