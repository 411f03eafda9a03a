// The arrows between folders: who may include whom. A new dependency is a decision, made here.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// By folder; a folder below one with a rule may have a stricter one of its own.
const std::map<std::string, std::vector<std::string>>& allowed() {
  static const std::map<std::string, std::vector<std::string>> arrows = {
      {"engine/core", {"engine/core/"}},
      {"engine/serve", {"engine/core/", "engine/serve/", "kernels/lora_kind.h"}},
      {"engine/model", {"engine/core/", "engine/model/", "kernels/"}},
      {"engine/backend/cost",
       {"engine/core/", "engine/serve/", "engine/model/", "engine/backend/cost/",
        "kernels/lora_kind.h"}},
      {"engine/backend/twin", {"engine/core/", "engine/serve/", "engine/backend/twin/"}},
      {"engine/backend/null", {"engine/core/", "engine/serve/"}},
      {"engine/backend/device",
       {"engine/core/", "engine/serve/", "engine/model/", "engine/backend/device/", "kernels/"}},
      {"engine/backend/host_lora",
       {"engine/core/", "engine/serve/cost.h", "engine/model/", "engine/backend/device/",
        "engine/backend/host_lora/", "kernels/"}},
      {"engine/backend/ranks",
       {"engine/core/", "engine/model/", "engine/backend/device/", "engine/backend/ranks/"}},
      {"engine/backend/cpu",
       {"engine/core/", "engine/serve/", "engine/model/", "engine/record/build_id.h",
        "engine/backend/device/", "engine/backend/host_lora/", "engine/backend/cpu/", "kernels/"}},
      {"engine/backend/cuda",
       {"engine/core/", "engine/serve/", "engine/model/", "engine/backend/device/",
        "engine/backend/host_lora/", "engine/backend/cuda/", "kernels/"}},
      {"engine/workload", {"engine/core/", "engine/serve/request.h", "engine/workload/"}},
      {"engine/record", {"engine/core/", "engine/serve/", "engine/workload/", "engine/record/"}},
      {"engine/spec", {"engine/core/", "engine/serve/", "engine/spec/"}},
      {"engine/predict", {"engine/core/", "engine/record/hdf5_reader.h", "engine/predict/"}},
      {"engine/run",
       {"engine/core/", "engine/serve/", "engine/model/", "engine/backend/", "engine/workload/",
        "engine/record/", "engine/spec/", "engine/run/"}},
      {"engine/jobs",
       {"engine/core/", "engine/record/", "engine/spec/", "engine/run/", "engine/jobs/"}},
      {"engine/calibrate",
       {"engine/core/", "engine/serve/", "engine/model/", "engine/backend/",
        "engine/workload/csv.h", "engine/record/", "engine/spec/", "engine/run/",
        "engine/calibrate/"}},
      {"engine/cli", {"engine/", "baselines/shared/"}},
      {"baselines",
       {"baselines/", "engine/core/params.h", "engine/core/ids.h", "engine/core/units.h",
        "engine/core/check.h", "engine/core/rng.h", "engine/predict/", "engine/serve/policy.h",
        "engine/serve/plan.h", "engine/serve/view.h"}},
      {"kernels", {"kernels/"}},
  };
  return arrows;
}

// The innermost folder of a file that has a rule; empty without one.
std::string folder_of(const fs::path& file) {
  for (fs::path folder = file.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (allowed().contains(folder.generic_string())) return folder.generic_string();
  }
  return "";
}

TEST(Architecture, IncludesFollowTheArrows) {
  const fs::path root = SERVELAB_SOURCE_DIR;
  const std::regex include(R"(^\s*#include [<\"]((engine|baselines|kernels)/[^\">]+)[\">])");
  int files = 0;
  for (const char* top : {"engine", "baselines", "kernels"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc" && extension != ".cu" && extension != ".cuh") {
        continue;
      }
      const std::string file = fs::relative(entry.path(), root).generic_string();
      const std::string folder = folder_of(file);
      ASSERT_FALSE(folder.empty()) << file << " lies in a folder that has no rule";
      ++files;
      std::ifstream in(entry.path());
      std::string line;
      while (std::getline(in, line)) {
        std::smatch match;
        if (!std::regex_search(line, match, include)) continue;
        const std::string target = match[1];
        const auto& targets = allowed().at(folder);
        const bool fine = std::any_of(targets.begin(), targets.end(), [&](const auto& prefix) {
          return target.rfind(prefix, 0) == 0;
        });
        EXPECT_TRUE(fine) << file << " may not include " << target;
      }
    }
  }
  EXPECT_GT(files, 40);
}

// Two types of one name in one namespace are undefined behaviour that no linker tells: either's
// destructor may run for both.
TEST(Architecture, OneNameIsOneType) {
  const std::regex type(R"(^(class|struct|union) (\w+)( final)?( :.*| \{.*|)$)");
  const std::regex opened(R"(^namespace( [\w:]+)? \{$)");
  const fs::path root = SERVELAB_SOURCE_DIR;
  std::map<std::string, std::set<std::string>> files_of;
  for (const char* folder : {"engine", "baselines", "kernels"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string kind = entry.path().extension();
      if (kind != ".h" && kind != ".cc" && kind != ".cu" && kind != ".cuh") continue;
      std::ifstream file(entry.path());
      std::vector<std::string> inside;  // namespaces; "" is an unnamed one
      std::smatch found;
      for (std::string line; std::getline(file, line);) {
        if (std::regex_match(line, found, opened)) inside.push_back(found[1]);
        if (line.rfind("}  // namespace", 0) == 0 && !inside.empty()) inside.pop_back();
        if (std::find(inside.begin(), inside.end(), "") != inside.end()) continue;
        if (!std::regex_match(line, found, type)) continue;
        std::string name;
        for (const std::string& each : inside) name += each + "::";
        files_of[name + found[2].str()].insert(fs::relative(entry.path(), root));
      }
    }
  }
  EXPECT_GT(files_of.size(), 400u);
  for (const auto& [name, files] : files_of) {
    EXPECT_EQ(files.size(), 1u) << name << " in " << ::testing::PrintToString(files);
  }
}

}  // namespace
