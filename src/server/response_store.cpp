#include "server/response_store.h"

#include <sqlite3.h>

#include <algorithm>

namespace quern {
namespace {

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) : db_(db) {
    if (sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr) != SQLITE_OK) fail();
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(int at, const std::string& text) {
    sqlite3_bind_text64(statement_, at, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
    return *this;
  }
  Statement& bind(int at, int64_t value) {
    sqlite3_bind_int64(statement_, at, value);
    return *this;
  }
  bool step() {
    const int rc = sqlite3_step(statement_);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) fail();
    return rc == SQLITE_ROW;
  }
  std::string text(int at) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, at));
    return bytes ? std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, at)))
                 : std::string();
  }
  int64_t integer(int at) const { return sqlite3_column_int64(statement_, at); }

 private:
  [[noreturn]] void fail() const { throw Error(std::string("response store: ") + sqlite3_errmsg(db_)); }

  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace

ResponseStore::ResponseStore(const std::string& path, int64_t max_responses, int64_t max_bytes)
    : path_(path.empty() ? ":memory:" : path),
      max_responses_(max_responses),
      max_bytes_(max_bytes > 0  ? max_bytes
                 : path.empty() ? int64_t{256} << 20
                                : int64_t{8} << 30) {
  if (sqlite3_open(path_.c_str(), &db_) != SQLITE_OK) {
    const std::string why = db_ ? sqlite3_errmsg(db_) : "out of memory";
    sqlite3_close(db_);
    throw Error("response store " + path_ + ": " + why);
  }
  try {
    sqlite3_busy_timeout(db_, 5000);
    run("PRAGMA journal_mode = WAL");
    run("PRAGMA synchronous = NORMAL");
    run("CREATE TABLE IF NOT EXISTS responses (turn INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, previous "
        "TEXT NOT "
        "NULL, created INTEGER NOT NULL, items TEXT NOT NULL, response TEXT NOT NULL)");
    // Which turns hold an item. A file from before this table gets its entries here.
    run("CREATE TABLE IF NOT EXISTS items (id TEXT NOT NULL, turn INTEGER NOT NULL, PRIMARY KEY (id, turn)) "
        "WITHOUT ROWID");
    run("CREATE INDEX IF NOT EXISTS items_of_turn ON items (turn)");
    run("CREATE TRIGGER IF NOT EXISTS drop_items AFTER DELETE ON responses BEGIN DELETE FROM items WHERE "
        "turn = "
        "OLD.turn; END");
    run("INSERT OR IGNORE INTO items SELECT json_extract(value, '$.id'), turn FROM responses, "
        "json_each(responses.items) WHERE NOT EXISTS (SELECT 1 FROM items) AND CASE type WHEN 'object' THEN "
        "json_type(value, '$.id') END = 'text'");
  } catch (const Error& error) {
    sqlite3_close(db_);
    throw Error("response store " + path_ + ": " + error.what());
  }
}

ResponseStore::~ResponseStore() { sqlite3_close(db_); }

void ResponseStore::run(const char* sql) {
  char* message = nullptr;
  if (sqlite3_exec(db_, sql, nullptr, nullptr, &message) == SQLITE_OK) return;
  const std::string why = message ? message : "unknown fault";
  sqlite3_free(message);
  throw Error(why);
}

void ResponseStore::put(const StoredResponse& r) {
  std::lock_guard lock(mutex_);
  run("BEGIN IMMEDIATE");
  try {
    insert(r);
    run("COMMIT");
  } catch (...) {
    sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
    throw;
  }
}

void ResponseStore::insert(const StoredResponse& r) {
  Statement(
      db_, "INSERT OR REPLACE INTO responses (id, previous, created, items, response) VALUES (?, ?, ?, ?, ?)")
      .bind(1, r.id)
      .bind(2, r.previous)
      .bind(3, r.created)
      .bind(4, r.items)
      .bind(5, r.response)
      .step();
  Statement(db_,
            "INSERT OR IGNORE INTO items SELECT json_extract(value, '$.id'), ? FROM json_each(?) WHERE "
            "CASE type WHEN 'object' THEN json_type(value, '$.id') END = 'text'")
      .bind(1, sqlite3_last_insert_rowid(db_))
      .bind(2, r.items)
      .step();
  Statement(db_, "DELETE FROM responses WHERE turn <= (SELECT MAX(turn) FROM responses) - ?")
      .bind(1, max_responses_)
      .step();
  while (bytes_used() > max_bytes_) {
    Statement(db_,
              "DELETE FROM responses WHERE turn = (SELECT MIN(turn) FROM responses) AND turn < (SELECT "
              "MAX(turn) FROM "
              "responses)")
        .step();
    if (sqlite3_changes(db_) == 0) break;
  }
}

// Pages in use: those of deleted responses are used again.
int64_t ResponseStore::bytes_used() const {
  Statement pages(
      db_,
      "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count(), pragma_freelist_count(), "
      "pragma_page_size()");
  return pages.step() ? pages.integer(0) : 0;
}

std::optional<StoredResponse> ResponseStore::get(const std::string& id) const {
  std::lock_guard lock(mutex_);
  Statement select(db_, "SELECT previous, created, items, response FROM responses WHERE id = ?");
  select.bind(1, id);
  if (!select.step()) return std::nullopt;
  return StoredResponse{id, select.text(0), select.integer(1), select.text(2), select.text(3)};
}

std::optional<Json> ResponseStore::item(const std::string& id) const {
  std::string items;
  {
    std::lock_guard lock(mutex_);
    Statement select(
        db_, "SELECT responses.items FROM items JOIN responses USING (turn) WHERE items.id = ? LIMIT 1");
    select.bind(1, id);
    if (!select.step()) return std::nullopt;
    items = select.text(0);
  }
  const Json parsed = parse_json(items);
  for (const Json& item : parsed.as_array())
    if (const Json* own = item.find("id"); own && *own == Json(id)) return item;
  return std::nullopt;
}

bool ResponseStore::remove(const std::string& id) {
  std::lock_guard lock(mutex_);
  Statement(db_, "DELETE FROM responses WHERE id = ?").bind(1, id).step();
  return sqlite3_changes(db_) > 0;
}

std::optional<Json> ResponseStore::history(const std::string& id, size_t max_turns) const {
  std::vector<std::string> turns;
  for (std::string at = id; !at.empty();) {
    if (turns.size() == max_turns) return std::nullopt;
    const auto stored = get(at);
    if (!stored) return std::nullopt;
    turns.push_back(stored->items);
    at = stored->previous;
  }
  Json items{Json::Array{}};
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    Json parsed = parse_json(*turn);
    for (Json& item : parsed.as_array()) items.push_back(std::move(item));
  }
  return items;
}

int64_t ResponseStore::size() const {
  std::lock_guard lock(mutex_);
  Statement count(db_, "SELECT COUNT(*) FROM responses");
  count.step();
  return count.integer(0);
}

}  // namespace quern
