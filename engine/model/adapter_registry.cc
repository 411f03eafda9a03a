#include "engine/model/adapter_registry.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "engine/core/check.h"
#include "engine/core/digest.h"
#include "engine/model/json_file.h"
#include "engine/model/peft_config.h"
#include "engine/model/safetensors.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

constexpr int kSchemaVersion = 2;
constexpr int kApplicationId = 0x534c4142;  // "SLAB"
constexpr int kBusyMs = 30000;
constexpr std::size_t kLongestName = 200;
constexpr std::array<const char*, 2> kFiles = {"adapter_config.json", "adapter_model.safetensors"};
constexpr const char* kRemedy = "; register it anew with `servelab adapters remove` and `add`";
constexpr const char* kColumns = "name, path, model, rank, targets, bytes, sha256, parameters";

[[noreturn]] void fail(sqlite3* database, const std::string& path) {
  const int code = sqlite3_errcode(database);
  if (code == SQLITE_NOTADB) throw SpecError(path + ": is not an SQLite file; mend --db");
  if (code == SQLITE_CORRUPT) throw SpecError(path + ": the registry is damaged; make a new one");
  if (code == SQLITE_BUSY) throw SpecError(path + ": is locked by another process; try again");
  throw SpecError(path + ": " + sqlite3_errmsg(database));
}

// One prepared statement.
class Statement {
 public:
  Statement(sqlite3* database, const std::string& path, const std::string& sql)
      : database_(database), path_(path) {
    if (sqlite3_prepare_v2(database, sql.c_str(), -1, &statement_, nullptr) != SQLITE_OK) {
      fail(database, path);
    }
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(const std::string& text) {
    sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(std::int64_t value) {
    sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  bool step() {  // whether there is a row
    const int code = sqlite3_step(statement_);
    if (code != SQLITE_ROW && code != SQLITE_DONE) fail(database_, path_);
    return code == SQLITE_ROW;
  }
  std::string text(int column) const {
    const unsigned char* text = sqlite3_column_text(statement_, column);
    return text == nullptr ? "" : reinterpret_cast<const char*>(text);
  }
  std::int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }

 private:
  sqlite3* database_;
  const std::string& path_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

void execute(sqlite3* database, const std::string& path, const std::string& sql) {
  Statement(database, path, sql).step();
}

// A write transaction, rolled back unless committed. IMMEDIATE: two writers wait for each other
// here and cannot deadlock later.
class Transaction {
 public:
  Transaction(sqlite3* database, const std::string& path) : database_(database), path_(path) {
    execute(database_, path_, "BEGIN IMMEDIATE");
  }
  ~Transaction() {
    if (open_) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() {
    execute(database_, path_, "COMMIT");
    open_ = false;
  }

 private:
  sqlite3* database_;
  const std::string& path_;
  bool open_ = true;
};

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ",") + text;
  return all;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

RegisteredAdapter row_of(const Statement& row) {
  RegisteredAdapter adapter;
  adapter.name = row.text(0);
  adapter.path = row.text(1);
  adapter.model = row.text(2);
  adapter.rank = static_cast<int>(row.integer(3));
  adapter.targets = split(row.text(4));
  adapter.bytes = row.integer(5);
  adapter.sha256 = row.text(6);
  adapter.parameters = row.integer(7);
  return adapter;
}

// One digest over the digests of the adapter's files.
std::string digest_of(const std::string& folder) {
  std::string lines;
  for (const char* file : kFiles) {
    lines += sha256_file_hex(fs::path(folder) / file) + "  " + file + "\n";
  }
  return sha256_hex(lines);
}

// Changes whenever a file is written to or replaced.
std::vector<std::int64_t> stamps_of(const std::string& folder) {
  std::vector<std::int64_t> stamps;
  for (const char* file : kFiles) {
    struct stat status {};
    if (::stat((fs::path(folder) / file).c_str(), &status) != 0) return {};
    for (const auto value :
         {static_cast<std::int64_t>(status.st_ino), static_cast<std::int64_t>(status.st_size),
          static_cast<std::int64_t>(status.st_mtim.tv_sec),
          static_cast<std::int64_t>(status.st_mtim.tv_nsec)}) {
      stamps.push_back(value);
    }
  }
  return stamps;
}

// Digest and weights of the same files: those of a folder that changes in between are refused.
std::shared_ptr<const LoraWeights> load_unchanged(const std::string& folder,
                                                  const ModelConfig& model,
                                                  const std::vector<std::int64_t>& stamps) {
  auto weights = load_peft_adapter(folder, model);
  if (stamps_of(folder) != stamps) {
    throw SpecError(folder + ": was changed while it was being read; try again");
  }
  return weights;
}

bool is_utf8(const std::string& text) {
  try {
    return !Json(text).dump().empty();
  } catch (const Json::type_error&) {
    return false;
  }
}

void check_name(const std::string& name) {
  const bool printable =
      std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (name.empty() || name.size() > kLongestName || !printable || !is_utf8(name)) {
    throw SpecError(
        "an adapter's name has 1 to 200 bytes of UTF-8, none of them a control character");
  }
}

void describe(const LoraWeights& weights, RegisteredAdapter* adapter) {
  adapter->rank = weights.rank();
  std::set<int> used;
  for (int layer = 0; layer < weights.layers(); ++layer) {
    for (int i = 0; i < kLinearLayers; ++i) {
      const LoraMatrices* m = weights.find(layer, static_cast<LinearLayer>(i));
      if (m == nullptr) continue;
      used.insert(i);
      for (const Tensor* tensor : {&m->a, &m->b}) {
        const std::int64_t count = static_cast<std::int64_t>(tensor->rows) * tensor->columns;
        adapter->parameters += count;
        adapter->bytes += count * static_cast<Bytes>(kernels::bytes_of(tensor->type));
      }
    }
  }
  for (const int i : used) {
    adapter->targets.emplace_back(kLinearLayerNames[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

AdapterRegistry::AdapterRegistry(const std::string& path, Open open) : path_(path) {
  std::error_code ignored;
  if (open == Open::kExisting && !fs::exists(path, ignored)) {
    throw SpecError(path + ": no such registry; `servelab adapters add` makes one");
  }
  const int flags = SQLITE_OPEN_READWRITE | (open == Open::kCreate ? SQLITE_OPEN_CREATE : 0);
  try {
    if (sqlite3_open_v2(path.c_str(), &database_, flags, nullptr) != SQLITE_OK) {
      throw SpecError(path + ": cannot be opened: " + sqlite3_errmsg(database_));
    }
    sqlite3_busy_timeout(database_, kBusyMs);
    prepare_schema(open);
  } catch (...) {
    sqlite3_close(database_);
    throw;
  }
}

AdapterRegistry::~AdapterRegistry() { sqlite3_close(database_); }

void AdapterRegistry::prepare_schema(Open open) {
  const auto pragma = [this](const char* name) {
    Statement statement(database_, path_, std::string("PRAGMA ") + name);
    return statement.step() ? statement.integer(0) : 0;
  };
  const auto check = [&](std::int64_t id, std::int64_t version) {
    if (id != kApplicationId) throw SpecError(path_ + ": is no adapter registry; mend --db");
    if (version == kSchemaVersion) return;
    if (version < kSchemaVersion) return upgrade(version);
    throw SpecError(path_ + ": its schema, version " + std::to_string(version) +
                    ", is newer than this servelab's, version " + std::to_string(kSchemaVersion) +
                    "; use a newer servelab or another --db");
  };
  if (const std::int64_t id = pragma("application_id"); id != 0 || open == Open::kExisting) {
    return check(id, pragma("user_version"));
  }
  Transaction transaction(database_, path_);
  if (const std::int64_t id = pragma("application_id"); id != 0) {
    return check(id, pragma("user_version"));  // another process was faster
  }
  if (Statement(database_, path_, "SELECT 1 FROM sqlite_master").step()) check(0, 0);
  execute(database_, path_,
          "CREATE TABLE adapters (name TEXT PRIMARY KEY, path TEXT NOT NULL, model TEXT NOT NULL, "
          "rank INTEGER NOT NULL, targets TEXT NOT NULL, bytes INTEGER NOT NULL, "
          "sha256 TEXT NOT NULL, parameters INTEGER NOT NULL) WITHOUT ROWID");
  execute(database_, path_, "PRAGMA application_id = " + std::to_string(kApplicationId));
  execute(database_, path_, "PRAGMA user_version = " + std::to_string(kSchemaVersion));
  transaction.commit();
}

// Version 1 did not count parameters: 0 there.
void AdapterRegistry::upgrade(std::int64_t from) {
  Transaction transaction(database_, path_);
  Statement version(database_, path_, "PRAGMA user_version");
  if (version.step() && version.integer(0) != from) return;  // another process was faster
  execute(database_, path_,
          "ALTER TABLE adapters ADD COLUMN parameters INTEGER NOT NULL DEFAULT 0");
  execute(database_, path_, "PRAGMA user_version = " + std::to_string(kSchemaVersion));
  transaction.commit();
}

RegisteredAdapter AdapterRegistry::add(const std::string& name, const std::string& folder,
                                       const ModelConfig& model) {
  check_name(name);
  std::error_code error;
  RegisteredAdapter adapter;
  adapter.name = name;
  adapter.path = fs::canonical(folder, error);
  if (error) throw SpecError(folder + ": no such folder");
  adapter.model = model.name;
  const std::vector<std::int64_t> stamps = stamps_of(adapter.path);
  describe(*load_unchanged(adapter.path, model, stamps), &adapter);
  adapter.sha256 = digest_of(adapter.path);
  if (stamps_of(adapter.path) != stamps) {
    throw SpecError(folder + ": was changed while it was being read; try again");
  }
  Transaction transaction(database_, path_);
  Statement taken(database_, path_, "SELECT path FROM adapters WHERE name = ?");
  if (taken.bind(name).step()) {
    throw SpecError(path_ + ": '" + name + "' is registered already, for " + taken.text(0) +
                    "; remove it first or choose another name");
  }
  Statement insert(
      database_, path_,
      std::string("INSERT INTO adapters (") + kColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
  insert.bind(name).bind(adapter.path).bind(adapter.model).bind(std::int64_t{adapter.rank});
  insert.bind(joined(adapter.targets)).bind(adapter.bytes).bind(adapter.sha256);
  insert.bind(adapter.parameters).step();
  transaction.commit();
  return adapter;
}

void AdapterRegistry::remove(const std::string& name) {
  find(name);
  Transaction transaction(database_, path_);
  Statement(database_, path_, "DELETE FROM adapters WHERE name = ?").bind(name).step();
  transaction.commit();
}

std::vector<RegisteredAdapter> AdapterRegistry::list() const {
  Statement rows(database_, path_,
                 std::string("SELECT ") + kColumns + " FROM adapters ORDER BY name");
  std::vector<RegisteredAdapter> adapters;
  while (rows.step()) adapters.push_back(row_of(rows));
  return adapters;
}

RegisteredAdapter AdapterRegistry::find(const std::string& name) const {
  Statement row(database_, path_,
                std::string("SELECT ") + kColumns + " FROM adapters WHERE name = ?");
  if (row.bind(name).step()) return row_of(row);
  constexpr std::size_t kMostNames = 20;
  std::vector<std::string> known;
  for (const RegisteredAdapter& each : list()) known.push_back(each.name);
  std::string hint = suggest(name, known);
  if (known.size() > kMostNames)
    hint = hint.substr(0, hint.find("known:")) + "see `servelab adapters list`";
  throw SpecError(path_ + ": no adapter '" + name + "'; " + hint);
}

std::optional<std::string> AdapterRegistry::problem(const RegisteredAdapter& adapter) {
  std::error_code ignored;
  for (const char* file : kFiles) {
    const std::string path = fs::path(adapter.path) / file;
    if (!fs::is_regular_file(path, ignored)) return path + ": was deleted" + kRemedy;
  }
  std::string digest;
  try {
    digest = digest_of(adapter.path);
  } catch (const SpecError& error) {
    return error.what();
  }
  if (digest == adapter.sha256) return std::nullopt;
  try {
    const std::string config = fs::path(adapter.path) / kFiles[0];
    PeftConfig(read_text_file(config), config);
    const TensorFiles tensors = TensorFiles::open_file(fs::path(adapter.path) / kFiles[1]);
    for (const auto& [name, entry] : tensors.entries()) {
      to_tensor(entry.stored, entry.file, entry.file->path(), name);
    }
    return adapter.path + ": was replaced: its SHA-256 is " + digest.substr(0, 16) +
           "..., registered is " + adapter.sha256.substr(0, 16) + "..." + kRemedy;
  } catch (const SpecError& error) {
    return "was changed, and is damaged: " + std::string(error.what()) + kRemedy;
  }
}

std::shared_ptr<const LoraWeights> AdapterRegistry::load(const std::string& name,
                                                         const ModelConfig& model) const {
  const RegisteredAdapter adapter = find(name);
  const std::vector<std::int64_t> stamps = stamps_of(adapter.path);
  if (const auto wrong = problem(adapter)) throw SpecError("adapter '" + name + "': " + *wrong);
  return load_unchanged(adapter.path, model, stamps);
}

}  // namespace servelab
