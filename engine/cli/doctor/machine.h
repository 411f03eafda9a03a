// What the doctor learns from the system. Tests answer in the system's place: with a folder in
// which /proc, /sys and programs are plain files, and by overriding what is no file. The user's own
// folders (source tree, data, results) are read without it.
#ifndef SERVELAB_CLI_DOCTOR_MACHINE_H_
#define SERVELAB_CLI_DOCTOR_MACHINE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/units.h"

namespace servelab::doctor {

struct DiskSpace {
  Bytes free = 0;  // for who is not root
  Bytes total = 0;
  std::uint32_t file_system = 0;  // statfs()'s magic number
};

struct Output {
  int code = -1;  // -1: could not be started, or was stopped at the limit
  bool timed_out = false;
  std::string text;  // stdout, 64 KiB at most
};

// Only looks. No call throws; what cannot be read is empty.
class Machine {
 public:
  // `root` goes before /proc, /sys and the folders of programs.
  explicit Machine(std::string root = "") : root_(std::move(root)) {}
  virtual ~Machine() = default;

  std::string place(const std::string& path) const;  // where that really lies
  std::string text(const std::string& path) const;
  std::string line(const std::string& path) const;  // the first, without blanks around it
  std::optional<Bytes> number(const std::string& path) const;
  std::vector<std::string> names_in(const std::string& folder) const;  // sorted
  // The first executable file of that name in $PATH, or else in `more` (colons between).
  std::string find_program(const std::string& name, const std::string& more = "") const;

  virtual std::string variable(const std::string& name) const;
  virtual int usable_cores() const;                         // by affinity
  virtual bool can_write(const std::string& folder) const;  // the user's
  virtual std::optional<DiskSpace> space(const std::string& folder) const;
  // Runs a program, as place() gives it, its stderr thrown away; kills it after `limit`.
  virtual Output run(const std::vector<std::string>& command,
                     std::chrono::milliseconds limit) const;

 private:
  std::string root_;
};

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_MACHINE_H_
