// The folder of one spec's results. Any number of runs of the same form of the spec share it, and
// so do the tasks that runs hand out: all lock the points that they compute (point_locks.h).
#ifndef SERVELAB_RUN_OUTPUT_FOLDER_H_
#define SERVELAB_RUN_OUTPUT_FOLDER_H_

#include <cstdint>
#include <string>

namespace servelab {

enum class FolderUse : std::uint8_t {
  kAlone,   // keeps runs out
  kRun,     // keeps out who would be alone, and runs of another form of the spec
  kShared,  // keeps nobody out
};

class OutputFolder {
 public:
  // Creates <out>/<spec_id>/points. The first of its users removes what killed runs left. Throws
  // SpecError when another run holds the folder in a way that does not go with `use`, or it cannot
  // be written. `form` is what runs that share the folder must have in common. A folder that is
  // there and cannot be written is taken as it is: its points can be read.
  OutputFolder(const std::string& out, const std::string& spec_id, FolderUse use,
               const std::string& form = "");
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string points_path() const { return path_ + "/points"; }
  std::string point_path(const std::string& key) const { return path_ + "/points/" + key + ".h5"; }
  std::string collected_path() const { return path_ + "/collected.h5"; }
  void remove_collected() const;  // if it is there
  bool is_writable() const { return is_writable_; }
  // The lock of who measures time here: one process at once. False while another has it.
  bool start_measuring() const;
  void stop_measuring() const;

 private:
  void lock(FolderUse use, const std::string& form);
  [[noreturn]] void refuse() const;

  std::string path_;
  int lock_file_ = -1;
  mutable int measuring_ = -1;
  bool is_writable_ = true;
};

// A file's path as commands in messages name it: relative inside the working folder, else absolute.
std::string path_for_commands(const std::string& path);

}  // namespace servelab

#endif  // SERVELAB_RUN_OUTPUT_FOLDER_H_
