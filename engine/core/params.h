// Declared settings. A settings struct has one `fields()` that names each member once; from that
// list come YAML parsing with checks, defaults, help, the schema, and the effective settings that a
// result records.
//
//   struct GammaArrivals {
//     double rate_per_s = 1;
//     double cv = 1;
//     void fields(ParamFields& f) {
//       f.add("rate", &rate_per_s, "mean arrivals per second").range(0, 1e6);
//       f.add("cv", &cv, "coefficient of variation of the gaps").range(0.01, 100);
//     }
//   };
#ifndef SERVELAB_CORE_PARAMS_H_
#define SERVELAB_CORE_PARAMS_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "engine/core/config_node.h"

namespace servelab {

class ParamField {
 public:
  using Target = std::variant<bool*, int*, std::int64_t*, double*, std::string*,
                              std::vector<double>*, std::vector<std::string>*>;

  ParamField(std::string name, Target target, std::string help)
      : name_(std::move(name)), target_(target), help_(std::move(help)) {}

  ParamField& range(double low, double high) {
    low_ = low;
    high_ = high;
    return *this;
  }
  ParamField& one_of(std::vector<std::string> choices) {
    choices_ = std::move(choices);
    return *this;
  }
  ParamField& required() {
    required_ = true;
    return *this;
  }
  // Text that names a file of this kind (Library::find). When all fields are assigned, bind() has
  // `read` take what the file says into other fields, and empties this one: effective settings hold
  // what was read, not where it stood. `read` throws SpecError.
  ParamField& file(std::string kind, std::function<void(const ConfigNode& name)> read) {
    file_kind_ = std::move(kind);
    read_ = std::move(read);
    return *this;
  }

  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  const std::vector<std::string>& choices() const { return choices_; }
  bool is_required() const { return required_; }
  const std::string& file_kind() const { return file_kind_; }  // empty: names no file
  std::string type_name() const;  // "int", "number", "bool", "text", "list of numbers", ...
  std::string limits() const;     // ">= 0, <= 1" or "one of a, b" or ""
  ConfigNode value() const;       // the present value
  void assign(const ConfigNode& node) const;     // throws SpecError with the place and the limits
  void read_file(const ConfigNode& name) const;  // of a field that names one

 private:
  std::string name_;
  Target target_;
  std::string help_;
  std::vector<std::string> choices_;
  double low_ = -std::numeric_limits<double>::infinity();
  double high_ = std::numeric_limits<double>::infinity();
  bool required_ = false;
  std::string file_kind_;
  std::function<void(const ConfigNode& name)> read_;
};

class ParamFields {
 public:
  template <class T>
  ParamField& add(std::string name, T* target, std::string help) {
    fields_.emplace_back(std::move(name), ParamField::Target(target), std::move(help));
    return fields_.back();
  }
  const std::vector<ParamField>& all() const { return fields_; }
  std::vector<std::string> names() const;

  // Assigns every member of `settings` (a map, or null for "all defaults"). `where` names the
  // section in messages, such as "technique 'slora'". Throws SpecError on an unknown key (with the
  // nearest known one), a wrong type, an impossible value or a missing required key.
  // `also_known` are keys that the caller handles itself.
  void bind(const ConfigNode& settings, const std::string& where,
            const std::vector<std::string>& also_known = {}) const;

  ConfigNode values() const;  // a map of every field's present value: the effective settings

 private:
  std::vector<ParamField> fields_;
};

// Binds `settings` to a struct with fields(), and reads its effective settings back.
template <class T>
void bind_params(const ConfigNode& settings, const std::string& where, T* out,
                 const std::vector<std::string>& also_known = {}) {
  ParamFields fields;
  out->fields(fields);
  fields.bind(settings, where, also_known);
}
template <class T>
ConfigNode effective_params(T* settings) {
  ParamFields fields;
  settings->fields(fields);
  return fields.values();
}

}  // namespace servelab

#endif  // SERVELAB_CORE_PARAMS_H_
