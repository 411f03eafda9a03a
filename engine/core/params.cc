#include "engine/core/params.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

namespace servelab {
namespace {

template <class T>
bool parse_number(const std::string& text, T* out) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  const auto [stop, error] = std::from_chars(begin, end, *out);
  return error == std::errc() && stop == end && begin != end;
}

// Integers may be written as 1e6 or 4_000 for readability; only whole values are accepted.
bool parse_integer(const std::string& raw, std::int64_t* out) {
  std::string text;
  std::copy_if(raw.begin(), raw.end(), std::back_inserter(text), [](char c) { return c != '_'; });
  if (parse_number(text, out)) return true;
  double number = 0;
  if (!parse_number(text, &number) || number != std::floor(number) || std::abs(number) > 9e15) {
    return false;
  }
  *out = static_cast<std::int64_t>(number);
  return true;
}

std::string shortest(double value) {
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc() ? std::string(buffer, end) : "nan";
}

ConfigNode number_node(const std::string& text) { return ConfigNode::of(text, false); }

std::string shown(const ConfigNode& node) {
  constexpr std::size_t kLongest = 60;
  if (node.is_scalar() && node.scalar.size() > kLongest) {
    return "'" + node.scalar.substr(0, kLongest) + "...'";
  }
  if (node.is_scalar()) return "'" + node.scalar + "'";
  if (node.is_null()) return "nothing";
  return node.is_map() ? "a map" : "a list";
}

}  // namespace

std::string ParamField::type_name() const {
  struct Name {
    std::string operator()(bool*) { return "true or false"; }
    std::string operator()(int*) { return "a whole number"; }
    std::string operator()(std::int64_t*) { return "a whole number"; }
    std::string operator()(double*) { return "a number"; }
    std::string operator()(std::string*) { return "text"; }
    std::string operator()(std::vector<double>*) { return "a list of numbers"; }
    std::string operator()(std::vector<std::string>*) { return "a list of texts"; }
  };
  return std::visit(Name{}, target_);
}

std::string ParamField::limits() const {
  if (!choices_.empty()) {
    std::string text = "one of ";
    for (std::size_t i = 0; i < choices_.size(); ++i) text += (i ? ", " : "") + choices_[i];
    return text;
  }
  std::string text;
  if (std::isfinite(low_)) text += ">= " + shortest(low_);
  if (std::isfinite(high_)) text += (text.empty() ? "<= " : " and <= ") + shortest(high_);
  return text;
}

ConfigNode ParamField::value() const {
  struct Read {
    ConfigNode operator()(bool* v) { return ConfigNode::of(*v ? "true" : "false", false); }
    ConfigNode operator()(int* v) { return number_node(std::to_string(*v)); }
    ConfigNode operator()(std::int64_t* v) { return number_node(std::to_string(*v)); }
    ConfigNode operator()(double* v) { return number_node(shortest(*v)); }
    ConfigNode operator()(std::string* v) { return ConfigNode::of(*v); }
    ConfigNode operator()(std::vector<double>* v) {
      ConfigNode list = ConfigNode::list();
      for (const double x : *v) list.items.push_back(number_node(shortest(x)));
      return list;
    }
    ConfigNode operator()(std::vector<std::string>* v) {
      ConfigNode list = ConfigNode::list();
      for (const std::string& x : *v) list.items.push_back(ConfigNode::of(x));
      return list;
    }
  };
  return std::visit(Read{}, target_);
}

void ParamField::assign(const ConfigNode& node) const {
  const auto fail = [&](const ConfigNode& at) {
    const std::string allowed = limits();
    std::string message = "'" + name_ + "' must be " + type_name();
    if (!allowed.empty()) message += ", " + allowed;
    message += "; got " + shown(at);
    if (!choices_.empty() && at.is_scalar()) message += " (" + suggest(at.scalar, choices_) + ")";
    throw SpecError(at.mark, message);
  };
  const auto number = [&](const ConfigNode& at) {
    double value = 0;
    if (!at.is_scalar() || at.quoted || !parse_number(at.scalar, &value) || !std::isfinite(value) ||
        value < low_ || value > high_) {
      fail(at);
    }
    return value;
  };
  const auto integer = [&](const ConfigNode& at) {
    std::int64_t value = 0;
    if (!at.is_scalar() || at.quoted || !parse_integer(at.scalar, &value) ||
        static_cast<double>(value) < low_ || static_cast<double>(value) > high_) {
      fail(at);
    }
    return value;
  };
  const auto text = [&](const ConfigNode& at) {
    if (!at.is_scalar()) fail(at);
    if (!choices_.empty() &&
        std::find(choices_.begin(), choices_.end(), at.scalar) == choices_.end()) {
      fail(at);
    }
    return at.scalar;
  };
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, bool>) {
          if (!node.is_scalar() || (node.scalar != "true" && node.scalar != "false")) fail(node);
          *target = node.scalar == "true";
        } else if constexpr (std::is_same_v<T, int>) {
          const std::int64_t value = integer(node);
          if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
            fail(node);
          }
          *target = static_cast<int>(value);
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
          *target = integer(node);
        } else if constexpr (std::is_same_v<T, double>) {
          *target = number(node);
        } else if constexpr (std::is_same_v<T, std::string>) {
          *target = text(node);
        } else {
          // A single value stands for a list of one.
          std::vector<ConfigNode> items = node.is_scalar() ? std::vector{node} : node.items;
          if (!node.is_list() && !node.is_scalar()) fail(node);
          T values;
          for (const ConfigNode& item : items) {
            if constexpr (std::is_same_v<T, std::vector<double>>) {
              values.push_back(number(item));
            } else {
              values.push_back(text(item));
            }
          }
          *target = std::move(values);
        }
      },
      target_);
}

void ParamField::read_file(const ConfigNode& name) const {
  if (file_kind_.empty() || name.scalar.empty()) return;
  read_(name);
  std::get<std::string*>(target_)->clear();
}

std::vector<std::string> ParamFields::names() const {
  std::vector<std::string> names;
  for (const ParamField& field : fields_) names.push_back(field.name());
  return names;
}

void ParamFields::bind(const ConfigNode& settings, const std::string& where,
                       const std::vector<std::string>& also_known) const {
  if (!settings.is_null() && !settings.is_map()) {
    throw SpecError(settings.mark, where + " must be a map of settings; got " + shown(settings));
  }
  for (const ConfigMember& member : settings.members) {
    const std::string& key = member.key;
    const ConfigNode& value = member.value;
    const auto field = std::find_if(fields_.begin(), fields_.end(),
                                    [&](const ParamField& f) { return f.name() == key; });
    if (field != fields_.end()) {
      field->assign(value);
    } else if (std::find(also_known.begin(), also_known.end(), key) == also_known.end()) {
      std::vector<std::string> known = names();
      known.insert(known.end(), also_known.begin(), also_known.end());
      throw SpecError(value.mark,
                      "unknown key '" + key + "' in " + where + "; " + suggest(key, known));
    }
  }
  for (const ParamField& field : fields_) {
    if (field.is_required() && settings.find(field.name()) == nullptr) {
      throw SpecError(settings.mark,
                      where + " needs '" + field.name() + "' (" + field.help() + ")");
    }
  }
  for (const ParamField& field : fields_) {
    if (const ConfigNode* name = settings.find(field.name())) field.read_file(*name);
  }
}

ConfigNode ParamFields::values() const {
  ConfigNode map = ConfigNode::map();
  for (const ParamField& field : fields_) map.set(field.name(), field.value());
  return map;
}

}  // namespace servelab
