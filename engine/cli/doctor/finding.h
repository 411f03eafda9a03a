// What the doctor says of one thing on a machine, and how it is written down.
#ifndef SERVELAB_CLI_DOCTOR_FINDING_H_
#define SERVELAB_CLI_DOCTOR_FINDING_H_

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/units.h"

namespace servelab::doctor {

enum class Level : std::uint8_t {
  kOk,
  kNote,     // costs something, and `make figures` works
  kProblem,  // `make figures` needs it
};

struct Finding {
  std::string name;  // stable, for programs: "governor"
  Level level = Level::kOk;
  std::string found;
  std::string cost;  // empty when ok
  std::string mend;  // a command or a step; empty when ok, or when nobody here can mend it
};

Finding ok(const std::string& name, const std::string& found);
Finding note(const std::string& name, const std::string& found, const std::string& cost,
             const std::string& mend = "");
Finding problem(const std::string& name, const std::string& found, const std::string& cost,
                const std::string& mend);

using Findings = std::vector<Finding>;

struct Section {
  std::string name;  // "machine"
  Findings findings;
};

// Quantities and lists, as the doctor writes them.
std::string gib(Bytes bytes);
// "a, b, c and 4 more"
std::string listed(std::vector<std::string> names, std::size_t most);
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

int count(const std::vector<Section>& sections, Level level);

// For people: one line a finding, below it what it costs and what mends it.
std::string text_of(const std::vector<Section>& sections);
// For programs: {"ready", "ok", "notes", "problems", "findings": [{"name": "machine.governor",
// "level", "found", "cost", "mend"}]}.
std::string json_of(const std::vector<Section>& sections);

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_FINDING_H_
