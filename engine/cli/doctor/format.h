// Quantities as the doctor writes them.
#ifndef SERVELAB_CLI_DOCTOR_FORMAT_H_
#define SERVELAB_CLI_DOCTOR_FORMAT_H_

#include <fmt/format.h>

#include <string>
#include <vector>

#include "engine/core/units.h"

namespace servelab::doctor {

inline std::string gib(Bytes bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

// "a, b, c". Not fmt::join(): GCC 12 sees overflows in it that are not there.
template <class Names>
std::string joined(const Names& names, const std::string& between = ", ") {
  std::string text;
  for (const auto& name : names) {
    if (!text.empty()) text += between;
    text += name;
  }
  return text;
}

// "a, b, c and 4 more"
inline std::string listed(std::vector<std::string> names, std::size_t most) {
  if (names.size() <= most) return joined(names);
  const std::size_t others = names.size() - most;
  names.resize(most);
  return joined(names) + fmt::format(" and {} more", others);
}

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_FORMAT_H_
