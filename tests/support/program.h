// Temporary folders, small files, and runs of the servelab binary, for tests of the command line.
#ifndef SERVELAB_TESTS_SUPPORT_PROGRAM_H_
#define SERVELAB_TESTS_SUPPORT_PROGRAM_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace servelab::test {

// The head of a spec of small points, which ends inside `workload:`.
inline constexpr const char* kSmallSpec =
    "title: test\nmodel: llama-2-7b\nhardware: a800-80g\n"
    "workload:\n"
    "  adapters: {count: 8, ranks: [8]}\n"
    "  arrivals: {process: poisson, rate: 10}\n"
    "  lengths: {source: lognormal, prompt: 60, output: 30}\n";

// A new folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name, const std::string& text) const;  // writes it
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

struct ProgramResult {
  int code = -1;  // exit code, or 128 + signal
  std::string out;
  std::string err;
};

// Another program than servelab, and variables that it finds in its environment.
struct ProgramSettings {
  std::string path;
  std::map<std::string, std::string> environment;
};

// A started servelab; its output goes to files in a folder of its own.
class Program {
 public:
  Program(const ProgramSettings& settings, const std::vector<std::string>& arguments);
  // `file_limit_bytes` > 0 bounds the size of files that it may write (as a full disk would).
  explicit Program(const std::vector<std::string>& arguments, long file_limit_bytes = 0);
  ~Program();  // kills it when it still runs
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  ProgramResult wait();

 private:
  void start(const ProgramSettings& settings, const std::vector<std::string>& arguments,
             long file_limit_bytes);
  TemporaryFolder folder_;
  pid_t pid_ = -1;
};

ProgramResult run_program(const std::vector<std::string>& arguments, long file_limit_bytes = 0);

// Content digest of every point file below `folder`, by file name.
std::map<std::string, std::string> digests(const std::string& folder);

// Waits until `folder` holds at least `count` files ending in `suffix`; false after 60 s.
bool wait_for_files(const std::string& folder, std::size_t count, const std::string& suffix);

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_PROGRAM_H_
