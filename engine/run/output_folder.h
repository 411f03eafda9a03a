// The folder of one spec's results: held by one run at a time, and shared with the tasks that runs
// hand out, which lock the points that they compute (point_locks.h).
#ifndef SERVELAB_RUN_OUTPUT_FOLDER_H_
#define SERVELAB_RUN_OUTPUT_FOLDER_H_

#include <cstdint>
#include <string>

namespace servelab {

enum class FolderUse : std::uint8_t { kAlone, kShared };

class OutputFolder {
 public:
  // Creates <out>/<spec_id>/points; alone, takes the folder's lock and removes what killed runs
  // left. Throws SpecError when another run holds the folder, or it cannot be written.
  OutputFolder(const std::string& out, const std::string& spec_id,
               FolderUse use = FolderUse::kAlone);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string points_path() const { return path_ + "/points"; }
  std::string point_path(const std::string& key) const { return path_ + "/points/" + key + ".h5"; }
  std::string collected_path() const { return path_ + "/collected.h5"; }
  void remove_collected() const;  // if it is there

 private:
  void lock();

  std::string path_;
  int lock_file_ = -1;
};

// A file's path as commands in messages name it: relative inside the working folder, else absolute.
std::string path_for_commands(const std::string& path);

}  // namespace servelab

#endif  // SERVELAB_RUN_OUTPUT_FOLDER_H_
