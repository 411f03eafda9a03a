#include "engine/jobs/slurm.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "engine/core/check.h"
#include "engine/core/config_node.h"
#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

struct ToolResult {
  int code = -1;
  std::string out;
  std::string err;
};

std::string text_of(int file) {
  std::string text;
  char part[4096];
  off_t at = 0;
  for (ssize_t got = 0; (got = ::pread(file, part, sizeof part, at)) > 0; at += got) {
    text.append(part, static_cast<std::size_t>(got));
  }
  ::close(file);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Runs a command to its end. Ctrl-C is not for it.
ToolResult run_tool(std::vector<std::string> words) {
  const int out = ::memfd_create("out", MFD_CLOEXEC);
  const int err = ::memfd_create("err", MFD_CLOEXEC);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ToolResult result;
  int status = 0;
  if (pid > 0) {
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  result.out = text_of(out);
  result.err = text_of(err);
  return result;
}

// What a command says of its failure, on one line.
std::string said(const ToolResult& result) {
  std::string text = !result.err.empty() ? result.err : result.out;
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.empty() ? fmt::format("exit code {}", result.code) : text;
}

bool is_on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// Each goes onto a line of the script.
void check_options(const ConfigNode& root, const char* key,
                   const std::vector<std::string>& options) {
  for (const std::string& option : options) {
    if (option.starts_with("-") && option.find('\n') == std::string::npos) continue;
    throw SpecError(root.find(key)->mark, "'" + std::string(key) + "' has " + in_quotes(option) +
                                              "; expected an option of sbatch such as --qos=low");
  }
}

void check_words(const ConfigNode& root, SiteSettings& site) {
  const std::pair<const char*, const std::string*> words[] = {{"partition", &site.partition},
                                                              {"account", &site.account},
                                                              {"time", &site.time},
                                                              {"memory", &site.memory}};
  for (const auto& [key, value] : words) {
    if (value->find_first_of(" \t\n\"'#") == std::string::npos) continue;
    throw SpecError(root.find(key)->mark,
                    "'" + std::string(key) + "' must be one word; got " + in_quotes(*value));
  }
}

std::string sbatch_quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

// Where %a stands for the task; other % are themselves.
std::string log_pattern(const Job& job) {
  std::string pattern;
  for (const char c : job.folder) pattern += c == '%' ? std::string("%%") : std::string(1, c);
  return pattern + "/logs/%a.out";
}

}  // namespace

void SiteSettings::fields(ParamFields& f) {
  f.add("partition", &partition, "where tasks run; empty: Slurm's default");
  f.add("account", &account, "who pays; empty: Slurm's default");
  f.add("time", &time, "limit of a task, as sbatch takes it, such as 2:00:00");
  f.add("memory", &memory, "of a task, as sbatch takes it, such as 8G");
  f.add("cpus", &cpus, "of a task, which computes as many points in virtual time at once")
      .range(1, 1024);
  f.add("points_per_task", &points_per_task, "0: 16 in virtual time, 1 on a real backend")
      .range(0, 1e6);
  f.add("at_once", &at_once, "tasks that may run at once; 0: all").range(0, 1e6);
  f.add("most_tasks", &most_tasks, "of a job; below Slurm's MaxArraySize").range(2, 1e6);
  f.add("exclusive", &exclusive, "which tasks have their node to themselves")
      .one_of({"real", "all", "none"});
  f.add("requeue", &requeue, "a task that is preempted, or whose node fails, starts again");
  f.add("sbatch", &sbatch, "further options of sbatch for every task, such as --qos=low");
  f.add("sbatch_real", &sbatch_real,
        "further options for tasks on a real backend, such as --gres=gpu:1");
  f.add("prologue", &prologue, "shell lines before each task, such as module load hdf5");
}

SiteSettings load_site(const std::string& path) {
  SiteSettings site;
  if (path.empty()) return site;
  const ConfigNode root = parse_yaml_file(path);
  if (!root.is_map() && !root.is_null()) {
    throw SpecError(SourceMark{path, 1, 1}, "a site file must be a map of settings");
  }
  bind_params(root, "the site file", &site);
  check_words(root, site);
  check_options(root, "sbatch", site.sbatch);
  check_options(root, "sbatch_real", site.sbatch_real);
  return site;
}

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string task_command(const Job& job, const std::string& task, int jobs) {
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  return fmt::format("{} work {} {} -j {}", shell_quoted(error ? "servelab" : self),
                     shell_quoted(job.folder), task, jobs);
}

std::string slurm_script(const Job& job, const SiteSettings& site, bool is_real) {
  const std::size_t first = is_real ? job.virtual_tasks() : 0;
  const std::size_t end = is_real ? job.tasks.size() : job.virtual_tasks();
  if (first == end) return "";
  const bool is_exclusive = site.exclusive == "all" || (site.exclusive == "real" && is_real);
  std::string text = "#!/bin/bash\n";
  const auto option = [&text](const std::string& words) { text += "#SBATCH " + words + "\n"; };
  option("--job-name=" + job.slurm_name());
  option(fmt::format("--array={}-{}{}", first, end - 1,
                     site.at_once > 0 ? fmt::format("%{}", site.at_once) : ""));
  option("--output=" + sbatch_quoted(log_pattern(job)));
  option("--open-mode=append");
  option("--chdir=" + sbatch_quoted(job.working_folder));
  option("--nodes=1");
  option("--ntasks=1");
  option(site.requeue ? "--requeue" : "--no-requeue");
  if (is_exclusive) option("--exclusive");
  if (!is_exclusive || !is_real) option(fmt::format("--cpus-per-task={}", site.cpus));
  if (!site.partition.empty()) option("--partition=" + site.partition);
  if (!site.account.empty()) option("--account=" + site.account);
  if (!site.time.empty()) option("--time=" + site.time);
  if (!site.memory.empty()) option("--mem=" + site.memory);
  for (const std::string& each : site.sbatch) option(each);
  for (const std::string& each : site.sbatch_real) {
    if (is_real) option(each);
  }
  if (!site.prologue.empty()) text += site.prologue + "\n";
  // In place of the shell, so that Slurm's signals reach it.
  text += "exec " + task_command(job, "\"$SLURM_ARRAY_TASK_ID\"", site.cpus) + "\n";
  return text;
}

void require_slurm() {
  for (const char* program : {"sbatch", "squeue"}) {
    if (is_on_path(program)) continue;
    throw SpecError(std::string("--executor slurm: ") + program +
                    " was not found on PATH; run this where Slurm's commands are, or write the "
                    "commands for another scheduler with --emit-jobs FILE");
  }
}

std::string submit(const std::string& script_path) {
  const ToolResult result = run_tool({"sbatch", "--parsable", script_path});
  if (result.code != 0) {
    throw SpecError("sbatch did not take the job: " + said(result));
  }
  return result.out.substr(0, result.out.find(';'));
}

std::vector<QueuedTask> queued_tasks(const Job& job) {
  const ToolResult result = run_tool(
      {"squeue", "--noheader", "--array", "--name=" + job.slurm_name(), "--format=%K|%T|%r"});
  if (result.code != 0) throw SpecError("squeue does not answer: " + said(result));
  std::vector<QueuedTask> tasks;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    QueuedTask task;
    std::string index;
    std::getline(fields, index, '|');
    std::getline(fields, task.state, '|');
    std::getline(fields, task.reason);
    task.index = static_cast<int>(std::strtol(index.c_str(), nullptr, 10));
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace servelab
