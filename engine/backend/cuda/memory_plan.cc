#include "engine/backend/cuda/memory_plan.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/core/units.h"

namespace servelab::cuda {
namespace {

std::string mib(std::size_t bytes) {
  return std::to_string((bytes + kMiB - 1) / static_cast<std::size_t>(kMiB)) + " MiB";
}

}  // namespace

void MemoryPlan::add(const std::string& name, std::size_t bytes, const std::string& setting) {
  if (bytes == 0) return;
  const auto same = [&](const Part& part) { return part.name == name; };
  const auto found = std::find_if(parts_.begin(), parts_.end(), same);
  if (found != parts_.end()) {
    found->bytes += bytes;
  } else {
    parts_.push_back({name, bytes, setting});
  }
}

std::size_t MemoryPlan::total() const {
  std::size_t total = 0;
  for (const Part& part : parts_) total += part.bytes;
  return total;
}

void MemoryPlan::check(std::size_t free_bytes) const {
  if (total() <= free_bytes) return;
  std::vector<Part> parts = parts_;
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.bytes > b.bytes; });
  std::string text = "out of device memory: " + mib(total()) + " are planned and " +
                     mib(free_bytes) + " are free:";
  for (const Part& part : parts) text += " " + part.name + " " + mib(part.bytes) + ",";
  text.back() = ';';
  text += " lower";
  std::vector<std::string> named;
  for (const Part& part : parts) {
    if (part.setting.empty()) continue;
    if (std::find(named.begin(), named.end(), part.setting) != named.end()) continue;
    text += (named.empty() ? " " : " or ") + part.setting;
    named.push_back(part.setting);
    if (named.size() == 2) break;
  }
  throw SpecError(text);
}

}  // namespace servelab::cuda
