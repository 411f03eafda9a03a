#include "engine/jobs/job.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <system_error>

#include "engine/core/check.h"
#include "engine/record/atomic_file.h"
#include "engine/record/build_id.h"
#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kJobSchema = 1;
constexpr const char* kJobFile = "job.json";

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw SpecError(path + ": cannot be read");
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  save_atomically(path, std::as_bytes(std::span(text.data(), text.size())));
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    throw SpecError(path + ": the folder cannot be made: " + system_reason(error.value()));
  }
}

// Time first, so that names sort by age.
std::string new_name() {
  std::random_device random;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  return fmt::format("{:%Y%m%dT%H%M%S}.{:03}Z-{:08x}",
                     fmt::gmtime(static_cast<std::time_t>(milliseconds / 1000)),
                     milliseconds % 1000, random());
}

// Neighbours stay together: they share workloads. Virtual points first, as the runner has them.
std::vector<JobTask> packed(const std::vector<MissingPoint>& points, const JobRequest& request) {
  std::vector<JobTask> tasks;
  for (const bool is_real : {false, true}) {
    const auto count = static_cast<std::size_t>(std::count_if(
        points.begin(), points.end(), [&](const auto& p) { return p.is_real == is_real; }));
    const auto asked =
        static_cast<std::size_t>(is_real ? request.real_points_per_task : request.points_per_task);
    const auto most = std::max<std::size_t>(1, static_cast<std::size_t>(request.most_tasks) / 2);
    const std::size_t size = std::max(asked, (count + most - 1) / most);
    std::size_t taken = 0;
    for (const MissingPoint& point : points) {
      if (point.is_real != is_real) continue;
      if (taken++ % size == 0) tasks.push_back(JobTask{is_real, {}});
      tasks.back().points[point.row] = point.key;
    }
  }
  return tasks;
}

std::vector<NamedFile> copies_of(const Spec& spec, const std::string& folder) {
  std::vector<NamedFile> files = spec.library.found();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string copy = fmt::format("{}/files/{}-{}.yaml", folder, i, files[i].kind);
    write_text(copy, read_text(files[i].path));
    files[i].path = copy;
  }
  return files;
}

json to_json(const Job& job) {
  json files = json::array();
  for (const NamedFile& file : job.files) {
    files.push_back({{"kind", file.kind},
                     {"name", file.name},
                     {"file", fs::path(file.path).filename().string()}});
  }
  json tasks = json::array();
  for (const JobTask& task : job.tasks) {
    json points = json::array();
    for (const auto& [row, key] : task.points) points.push_back({{"row", row}, {"key", key}});
    tasks.push_back({{"real", task.is_real}, {"points", std::move(points)}});
  }
  return {{"schema", kJobSchema},
          {"build_id", job.build},
          {"spec_id", job.spec_id},
          {"spec_path", job.spec_path},
          {"working_folder", job.working_folder},
          {"experiments", job.library_root},
          {"profile", job.profile},
          {"quick", job.quick},
          {"out", job.out},
          {"data", job.data_dir},
          {"files", std::move(files)},
          {"tasks", std::move(tasks)}};
}

Job from_json(const json& node, const std::string& folder) {
  Job job;
  job.folder = folder;
  job.build = node.at("build_id");
  job.spec_id = node.at("spec_id");
  job.spec_path = node.at("spec_path");
  job.working_folder = node.at("working_folder");
  job.library_root = node.at("experiments");
  job.profile = node.at("profile");
  job.quick = node.at("quick");
  job.out = node.at("out");
  job.data_dir = node.at("data");
  for (const json& file : node.at("files")) {
    job.files.push_back({file.at("kind"), file.at("name"),
                         folder + "/files/" + file.at("file").get<std::string>()});
  }
  for (const json& task : node.at("tasks")) {
    JobTask read;
    read.is_real = task.at("real");
    for (const json& point : task.at("points")) {
      read.points[point.at("row").get<std::size_t>()] = point.at("key");
    }
    job.tasks.push_back(std::move(read));
  }
  return job;
}

}  // namespace

std::string Job::name() const { return fs::path(folder).filename().string(); }

std::string Job::slurm_name() const {
  std::string of_spec = spec_id;
  std::replace_if(
      of_spec.begin(), of_spec.end(), [](char c) { return c == '/' || c == ',' || c == ' '; }, '_');
  return "servelab-" + of_spec + "-" + name();
}

std::size_t Job::virtual_tasks() const {
  const auto real =
      std::find_if(tasks.begin(), tasks.end(), [](const JobTask& t) { return t.is_real; });
  return static_cast<std::size_t>(real - tasks.begin());
}

std::string Job::log(int task) const { return fmt::format("{}/logs/{}.out", folder, task); }

Job make_job(const OutputFolder& folder, const Spec& spec, const RunOptions& options,
             const JobRequest& request, const std::vector<MissingPoint>& points) {
  Job job;
  job.folder = fs::absolute(folder.path()).lexically_normal().string() + "/jobs/" + new_name();
  job.build = build_id();
  job.spec_id = spec.id;
  job.spec_path = spec.path;
  job.working_folder = fs::current_path().string();
  job.library_root = spec.library.root();
  job.profile = request.profile;
  job.quick = request.quick;
  job.out = fs::absolute(options.out).lexically_normal().string();
  job.data_dir = options.data_dir;
  job.tasks = packed(points, request);
  for (const char* part : {"files", "logs", "failed"}) make_folder(job.folder + "/" + part);
  write_text(job.folder + "/spec.yaml", spec.yaml);
  job.files = copies_of(spec, job.folder);
  return job;
}

void save_job(const Job& job) { write_text(job.folder + "/" + kJobFile, to_json(job).dump(1)); }

Job read_job(const std::string& folder) {
  std::error_code error;
  const std::string whole = fs::absolute(folder, error).lexically_normal().string();
  const std::string path = whole + "/" + kJobFile;
  if (!fs::is_regular_file(path, error)) {
    throw SpecError(folder + ": is no job, as it has no " + kJobFile +
                    "; jobs are in <out>/<spec id>/jobs/");
  }
  try {
    const json node = json::parse(read_text(path));
    if (node.at("schema") != kJobSchema) {
      throw SpecError(path + ": was made by another version of servelab; run the spec again");
    }
    return from_json(node, whole);
  } catch (const json::exception& problem) {
    throw SpecError(path + ": is damaged: " + problem.what());
  }
}

std::vector<Job> jobs_of(const OutputFolder& folder) {
  std::vector<std::string> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.path() + "/jobs", error)) {
    folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  std::vector<Job> jobs;
  for (const std::string& each : folders) {
    try {
      jobs.push_back(read_job(each));
    } catch (const SpecError&) {  // it was killed before it was a job
    }
  }
  return jobs;
}

Spec spec_of(const Job& job) {
  const Library library(job.library_root, job.files);
  Spec spec = parse_spec(read_text(job.folder + "/spec.yaml"), job.spec_path, library,
                         job.quick ? SpecForm::kQuick : SpecForm::kFull);
  if (!job.profile.empty()) use_profile(job.profile, &spec);
  spec.id = job.spec_id;
  return spec;
}

RunReport run_task(const Job& job, std::size_t task, RunOptions options) {
  if (task >= job.tasks.size()) {
    throw SpecError(
        fmt::format("{} has no task {}; it has 0 to {}", job.folder, task, job.tasks.size() - 1));
  }
  if (job.build != build_id()) {
    throw SpecError(
        fmt::format("{} was made by the build {}, and this is {}; run the spec again "
                    "to hand out what is missing",
                    job.folder, job.build, build_id()));
  }
  std::error_code error;
  fs::current_path(job.working_folder, error);
  if (error) {
    throw SpecError(job.working_folder +
                    ": the job's working folder cannot be entered: " + error.message());
  }
  const Spec spec = spec_of(job);
  options.out = job.out;
  options.data_dir = job.data_dir;
  options.share = &job.tasks[task].points;
  const OutputFolder folder(options.out, spec.id, FolderUse::kShared);
  const RunReport report = run_spec_in(folder, spec, options);
  for (const FailedPoint& point : report.failures) {
    if (point.key.empty()) continue;
    const json node = {
        {"label", point.label}, {"message", point.message}, {"input", point.is_input}};
    write_text(job.folder + "/failed/" + point.key,
               node.dump(1, ' ', false, json::error_handler_t::replace));
  }
  return report;
}

std::optional<FailedPoint> failure_of(const Job& job, const std::string& key) {
  const std::string path = job.folder + "/failed/" + key;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  try {
    const json node = json::parse(read_text(path));
    return FailedPoint{key, node.at("label"), node.at("message"), node.at("input")};
  } catch (const json::exception& problem) {
    return FailedPoint{key, key, path + ": is damaged: " + problem.what(), false};
  }
}

}  // namespace servelab
