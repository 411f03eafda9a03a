#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/cli/doctor/checks.h"
#include "engine/cli/doctor/data_sums.h"
#include "engine/core/check.h"
#include "engine/core/digest.h"
#include "engine/workload/data_files.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNames = 6;  // on a line

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string fetch_command(const DataFile& file) {
  return file.fetch.empty() ? "make it by hand: data/README.md has the table"
                            : "data/fetch " + file.fetch;
}

Finding check_folder(const Subject& subject) {
  if (!subject.data.empty()) {
    if (is_there(subject.data)) return ok("folder", subject.data);
    return problem("folder", subject.data + " does not exist", "every run ends in an error",
                   "mend SERVELAB_DATA or --data, or leave it out");
  }
  constexpr const char* kCost = "embedded statistics stand in for all traces";
  for (const char* folder : {"/../shared/data", "/data/downloads"}) {  // as in the Makefile
    const std::string found = subject.tree + folder;
    if (subject.tree.empty() || !is_there(found)) continue;
    return note(
        "folder",
        "SERVELAB_DATA is not set; make uses " + fs::path(found).lexically_normal().string(),
        std::string("where servelab is called without make, ") + kCost,
        "export SERVELAB_DATA=" + fs::path(found).lexically_normal().string());
  }
  return note("folder", "SERVELAB_DATA is not set", kCost, "data/fetch all");
}

// What a spec needs of them, its run says; some are for figures of one paper only.
Finding check_traces(const std::string& data) {
  std::vector<std::string> missing;
  for (const DataFile& file : data_files()) {
    if (!locate(file, data)) missing.push_back(file.name);
  }
  const std::string found =
      fmt::format("{} of {} there", data_files().size() - missing.size(), data_files().size());
  if (missing.empty()) return ok("traces", found);
  return note("traces", found + ", not " + listed(missing, kMostNames),
              "embedded statistics stand in, or, for replays and rates, the run ends in an error",
              "data/fetch NAME, or all; data/README.md has what is made by hand");
}

// Why the file cannot be read to its end, or nothing. Compressed ones have a checksum of their own.
std::string why_unreadable(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return "cannot be opened";
  std::vector<char> buffer(1 << 16);
  int size = 0;
  while ((size = gzread(file, buffer.data(), static_cast<unsigned>(buffer.size()))) > 0) {
  }
  const int state = gzclose_r(file);
  return size < 0 || state != Z_OK ? "is damaged or cut short" : "";
}

// Reads every trace; tells those apart that are not what the embedded statistics were fitted to.
Findings check_content(const std::string& data) {
  std::vector<std::string> other, unknown;
  Findings findings;
  std::set<std::string> seen;
  for (const DataFile& file : data_files()) {
    const auto path = locate(file, data);
    if (!path || !seen.insert(*path).second) continue;
    if (const std::string why = why_unreadable(*path); !why.empty()) {
      findings.push_back(problem("content_" + file.name, *path + " " + why,
                                 "specs that use it end in an error",
                                 "rm " + *path + " && " + fetch_command(file)));
      continue;
    }
    const std::string* sum = known_sum(file.path);
    if (sum == nullptr) {
      unknown.push_back(file.name);
    } else if (*path != data + "/" + file.path || sha256_file_hex(*path) != *sum) {
      other.push_back(file.name);
    }
  }
  if (!other.empty()) {
    findings.push_back(
        note("sums", "other bytes than those of the kept figures: " + listed(other, kMostNames),
             "figures differ where the rows do (another compression is harmless)"));
  } else {
    findings.push_back(ok("sums", fmt::format("{} tables are readable; {} have no known checksum",
                                              seen.size(), unknown.size())));
  }
  return findings;
}

}  // namespace

Findings check_data(const Subject& subject) {
  Findings findings = {check_folder(subject), check_traces(subject.data)};
  if (subject.full && !subject.data.empty()) {
    for (const Finding& finding : check_content(subject.data)) findings.push_back(finding);
  }
  return findings;
}

}  // namespace servelab::doctor
