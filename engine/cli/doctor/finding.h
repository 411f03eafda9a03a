// What the doctor says of one thing on a machine, and how it is written down.
#ifndef SERVELAB_CLI_DOCTOR_FINDING_H_
#define SERVELAB_CLI_DOCTOR_FINDING_H_

#include <cstdint>
#include <string>
#include <vector>

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

struct Section {
  std::string name;  // "processor"
  std::vector<Finding> findings;
};

int count(const std::vector<Section>& sections, Level level);

// For people: one line a finding, below it what it costs and what mends it.
std::string text_of(const std::vector<Section>& sections);
// For programs: {"ready", "ok", "notes", "problems", "findings": [{"name": "processor.governor",
// "level", "found", "cost", "mend"}]}.
std::string json_of(const std::vector<Section>& sections);

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_FINDING_H_
