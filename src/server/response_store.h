// Stored responses of /v1/responses, in SQLite: what each turn was asked and what it answered, so that a request can
// go on from previous_response_id. In memory, or in a file (WAL) that survives a restart. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"

struct sqlite3;

namespace quern {

struct StoredResponse {
  std::string id, previous;  // previous: empty for the first of a conversation
  int64_t created = 0;
  std::string items;     // JSON array: this turn's input items, then its output items
  std::string response;  // the response object as it was sent
};

class ResponseStore {
 public:
  // `path` empty: in memory. Keeps the newest `max_responses`, and of them what fits `max_bytes` (0: 256 MiB in memory,
  // 8 GiB in a file); the newest in any case. Throws Error naming the path.
  explicit ResponseStore(const std::string& path, int64_t max_responses = 20'000, int64_t max_bytes = 0);
  ~ResponseStore();
  ResponseStore(const ResponseStore&) = delete;
  ResponseStore& operator=(const ResponseStore&) = delete;

  void put(const StoredResponse& response);
  std::optional<StoredResponse> get(const std::string& id) const;
  bool remove(const std::string& id);
  // An output item of a response that is stored, by its id; nothing where there is none.
  std::optional<Json> item(const std::string& id) const;
  // The items of the whole conversation up to and including `id`, oldest first; nothing where a link is missing.
  std::optional<Json> history(const std::string& id, size_t max_turns = 10'000) const;
  int64_t size() const;

 private:
  void run(const char* sql);
  void insert(const StoredResponse& response);
  int64_t bytes_used() const;

  std::string path_;
  int64_t max_responses_, max_bytes_;
  mutable std::mutex mutex_;
  sqlite3* db_ = nullptr;
};

}  // namespace quern
