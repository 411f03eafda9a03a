#include "engine/model/json_file.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr std::uintmax_t kLargestFile = std::uintmax_t{64} << 20;
constexpr int kDeepest = 64;

std::string place_of(std::string_view text, std::size_t byte, const std::string& file) {
  const std::string_view before = text.substr(0, std::min(byte > 0 ? byte - 1 : 0, text.size()));
  const std::size_t newline = before.rfind('\n');
  SourceMark mark;
  mark.file = file;
  mark.line = 1 + static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  mark.column =
      static_cast<int>(before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1);
  return mark.text();
}

std::string number_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

template <class J>
J parse_json(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> open;  // keys so far of each object that is not closed yet
  const auto watch = [&](int depth, typename J::parse_event_t event, J& parsed) {
    if (depth > kDeepest) {
      throw SpecError(file + ": JSON nested deeper than " + std::to_string(kDeepest) + " levels");
    }
    if (event == J::parse_event_t::object_start) open.emplace_back();
    if (event == J::parse_event_t::object_end) open.pop_back();
    if (event == J::parse_event_t::key) {
      const auto& key = parsed.template get_ref<const std::string&>();
      if (!open.back().insert(key).second) throw SpecError(file + ": duplicate key '" + key + "'");
    }
    return true;
  };
  try {
    return J::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::detail::parse_error& error) {
    throw SpecError(place_of(text, error.byte, file) + ": not valid JSON; is the file damaged?");
  } catch (const nlohmann::detail::exception&) {  // such as a number beyond double
    throw SpecError(file + ": not valid JSON: a number is out of range");
  }
}
template Json parse_json<Json>(std::string_view text, const std::string& file);
template nlohmann::json parse_json<nlohmann::json>(std::string_view text, const std::string& file);

std::string read_text_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) throw SpecError(path + ": no such file");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kLargestFile) throw SpecError(path + ": too large for a settings file");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file && size > 0) content << file.rdbuf();
  if (!file) throw SpecError(path + ": cannot be read: " + std::strerror(errno));
  return content.str();
}

bool is_truthy(const Json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

std::string shown(const Json& value) {
  constexpr std::size_t kLongest = 60;
  if (value.is_array()) return value.empty() ? "an empty list" : "a list";
  if (value.is_object()) return value.empty() ? "an empty map" : "a map";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

JsonObject::JsonObject(const Json& json, std::string file, std::string section)
    : json_(json), file_(std::move(file)), section_(std::move(section)) {
  if (json_.is_object()) return;
  const std::string what = section_.empty() ? "the file" : "'" + section_ + "'";
  throw SpecError(file_ + ": " + what + " must hold a JSON object; got " + shown(json_));
}

const Json* JsonObject::find(const std::string& key) const {
  const auto member = json_.find(key);
  return member == json_.end() || member->is_null() ? nullptr : &*member;
}

void JsonObject::refuse(const std::string& key, const std::string& what) const {
  throw SpecError(file_ + ": '" + (section_.empty() ? "" : section_ + ".") + key + "' " + what);
}

const Json& JsonObject::need(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) refuse(key, "is missing");
  return *value;
}

int JsonObject::integer(const std::string& key, int low, int high) const {
  const Json& value = need(key);
  const bool whole = value.is_number_integer();
  const double number = whole ? value.get<double>() : 0;
  if (!whole || number < low || number > high) {
    refuse(key, "must be a whole number from " + std::to_string(low) + " to " +
                    std::to_string(high) + "; got " + shown(value));
  }
  return value.get<int>();
}
int JsonObject::integer(const std::string& key, int low, int high, int fallback) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double JsonObject::number(const std::string& key, double low, double high) const {
  const Json& value = need(key);
  const double number = value.is_number() ? value.get<double>() : 0;
  if (!value.is_number() || !(number >= low && number <= high)) {
    refuse(key, "must be a number from " + number_text(low) + " to " + number_text(high) +
                    "; got " + shown(value));
  }
  return number;
}
double JsonObject::number(const std::string& key, double low, double high, double fallback) const {
  return has(key) ? number(key, low, high) : fallback;
}

bool JsonObject::boolean(const std::string& key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "must be true or false; got " + shown(*value));
  return value->get<bool>();
}

std::string JsonObject::text(const std::string& key, const std::string& fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse(key, "must be text; got " + shown(*value));
  return value->get<std::string>();
}

std::vector<std::string> JsonObject::texts(const std::string& key) const {
  const Json* value = find(key);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  if (!value->is_array()) refuse(key, "must be a list of texts; got " + shown(*value));
  for (const Json& item : *value) {
    if (!item.is_string()) refuse(key, "must be a list of texts; it holds " + shown(item));
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

}  // namespace servelab
