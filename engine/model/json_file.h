// JSON from outside: settings of models and adapters, headers of weight files. Every error is a
// SpecError of one line with the file and, where it helps, the place or the key.
#ifndef SERVELAB_MODEL_JSON_FILE_H_
#define SERVELAB_MODEL_JSON_FILE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace servelab {

using Json =
    nlohmann::ordered_json;  // keys in file order: PEFT takes the first pattern that matches

// Refuses malformed text, duplicate keys and nesting beyond 64 levels. J is Json or nlohmann::json.
template <class J>
J parse_json(std::string_view text, const std::string& file);

// The content of a regular file of at most 64 MiB.
std::string read_text_file(const std::string& path);

// Python's bool(): false, 0, "", [] and {} are not truthy, nor is null.
bool is_truthy(const Json& value);

// The beginning of a value, for messages.
std::string shown(const Json& value);

// Typed access to the members of a JSON object. A member that is null counts as absent.
class JsonObject {
 public:
  // `json` outlives the object. SpecError when it is no object. `section` ("rope_scaling.") goes
  // before keys in messages.
  JsonObject(const Json& json, std::string file, std::string section = "");

  const Json& json() const { return json_; }
  const std::string& file() const { return file_; }
  bool has(const std::string& key) const { return find(key) != nullptr; }
  const Json* find(const std::string& key) const;

  // The form without a fallback needs the member.
  int integer(const std::string& key, int low, int high) const;
  int integer(const std::string& key, int low, int high, int fallback) const;
  double number(const std::string& key, double low, double high) const;
  double number(const std::string& key, double low, double high, double fallback) const;
  bool boolean(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  std::vector<std::string> texts(const std::string& key) const;  // a list; absent: empty

  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;  // "'key' what"

 private:
  const Json& need(const std::string& key) const;

  const Json& json_;
  std::string file_;
  std::string section_;
};

}  // namespace servelab

#endif  // SERVELAB_MODEL_JSON_FILE_H_
