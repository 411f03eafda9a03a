#include "engine/cli/doctor/finding.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace servelab::doctor {
namespace {

const char* name_of(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kNote:
      return "note";
    case Level::kProblem:
      return "problem";
  }
  return "";
}

std::string counted(int n, const std::string& what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

}  // namespace

Finding ok(const std::string& name, const std::string& found) {
  return {name, Level::kOk, found, "", ""};
}

Finding note(const std::string& name, const std::string& found, const std::string& cost,
             const std::string& mend) {
  return {name, Level::kNote, found, cost, mend};
}

Finding problem(const std::string& name, const std::string& found, const std::string& cost,
                const std::string& mend) {
  return {name, Level::kProblem, found, cost, mend};
}

std::string gib(Bytes bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

std::string listed(std::vector<std::string> names, std::size_t most) {
  if (names.size() <= most) return joined(names);
  const std::size_t others = names.size() - most;
  names.resize(most);
  return joined(names) + fmt::format(" and {} more", others);
}

int count(const std::vector<Section>& sections, Level level) {
  int n = 0;
  for (const Section& section : sections) {
    n += static_cast<int>(
        std::count_if(section.findings.begin(), section.findings.end(),
                      [&](const Finding& finding) { return finding.level == level; }));
  }
  return n;
}

std::string text_of(const std::vector<Section>& sections) {
  std::size_t widest = 0;
  for (const Section& section : sections) {
    for (const Finding& finding : section.findings) widest = std::max(widest, finding.name.size());
  }
  const std::string margin(widest + 12, ' ');
  std::string text;
  for (const Section& section : sections) {
    text += section.name + "\n";
    for (const Finding& finding : section.findings) {
      text += fmt::format("  {:<8} {:<{}} {}\n", name_of(finding.level), finding.name, widest,
                          finding.found);
      if (!finding.cost.empty()) text += margin + "costs: " + finding.cost + "\n";
      if (!finding.mend.empty()) text += margin + "mend:  " + finding.mend + "\n";
    }
  }
  const int problems = count(sections, Level::kProblem);
  text += fmt::format("doctor: {} ok, {}, {}: {}\n", count(sections, Level::kOk),
                      counted(count(sections, Level::kNote), "note"), counted(problems, "problem"),
                      problems == 0 ? "`make figures` has what it needs"
                                    : "`make figures` needs what is named a problem");
  return text;
}

std::string json_of(const std::vector<Section>& sections) {
  nlohmann::ordered_json json;
  json["ready"] = count(sections, Level::kProblem) == 0;
  json["ok"] = count(sections, Level::kOk);
  json["notes"] = count(sections, Level::kNote);
  json["problems"] = count(sections, Level::kProblem);
  json["findings"] = nlohmann::ordered_json::array();
  for (const Section& section : sections) {
    for (const Finding& finding : section.findings) {
      json["findings"].push_back({{"name", section.name + "." + finding.name},
                                  {"level", name_of(finding.level)},
                                  {"found", finding.found},
                                  {"cost", finding.cost},
                                  {"mend", finding.mend}});
    }
  }
  // What was read from the machine may be in any encoding.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace servelab::doctor
