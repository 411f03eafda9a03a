// Named factories, filled during static initialisation by one line at the end of the file that
// defines the thing. Order of listing is by name, whatever the link order was.
#ifndef SERVELAB_CORE_REGISTRY_H_
#define SERVELAB_CORE_REGISTRY_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/check.h"

namespace servelab {

template <class T>
class Registry {
 public:
  using Factory = std::function<std::unique_ptr<T>()>;

  // The one registry of T's. `T::kRegistryName` is its name in messages ("technique").
  static Registry& instance() {
    static Registry registry;
    return registry;
  }

  bool add(const std::string& name, Factory factory) {
    SL_CHECK(factories_.emplace(name, std::move(factory)).second,
             std::string(T::kRegistryName) + " '" + name + "' is registered twice");
    return true;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, factory] : factories_) names.push_back(name);
    return names;
  }
  bool has(const std::string& name) const { return factories_.count(name) != 0; }

  // Throws SpecError naming the known ones when `name` is unknown.
  std::unique_ptr<T> make(const std::string& name, const SourceMark& where = {}) const {
    auto found = factories_.find(name);
    if (found == factories_.end()) {
      const std::string what =
          std::string("unknown ") + T::kRegistryName + " '" + name + "'; " + suggest(name, names());
      throw where.file.empty() ? SpecError(what) : SpecError(where, what);
    }
    return found->second();
  }

 private:
  std::map<std::string, Factory> factories_;
};

}  // namespace servelab

// On the last line of the file of servelab::Class, outside any namespace. Each interface has a
// macro of its own over this one.
#define SERVELAB_REGISTER(Interface, id, Class)                      \
  namespace {                                                        \
  [[maybe_unused]] const bool servelab_registered_##Class =          \
      ::servelab::Registry<::servelab::Interface>::instance().add(   \
          id, [] { return std::make_unique<::servelab::Class>(); }); \
  }

#endif  // SERVELAB_CORE_REGISTRY_H_
