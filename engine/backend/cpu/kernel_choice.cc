#include "engine/backend/cpu/kernel_choice.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "engine/core/processor.h"
#include "engine/record/build_id.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using kernels::KernelChoice;

constexpr std::size_t kLongestFile = 4096;  // bytes; whatever is longer is not ours
constexpr auto kPatience = std::chrono::seconds(2);

// A regular file, open and locked; not `ok` where that is not to be had.
class LockedFile {
 public:
  explicit LockedFile(const fs::path& path)
      : descriptor_(
            ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0644)) {
    struct stat about {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &about) != 0 || !S_ISREG(about.st_mode)) return;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!(ok_ = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0)) {
      if (std::chrono::steady_clock::now() > deadline) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  ~LockedFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  bool ok() const { return ok_; }
  std::string read() const {
    std::string text(kLongestFile, '\0');
    const ssize_t bytes = ::pread(descriptor_, text.data(), text.size(), 0);
    text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    return text;
  }
  void write(const std::string& text) const {
    if (::ftruncate(descriptor_, 0) != 0) return;
    if (::pwrite(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
      static_cast<void>(!::ftruncate(descriptor_, 0));  // a part of it would be measured again too
    }
  }

 private:
  int descriptor_;
  bool ok_ = false;
};

// Empty where the user has none.
fs::path cache_folder() {
  for (const auto& [variable, below] : {std::pair{"XDG_CACHE_HOME", ""}, {"HOME", ".cache"}}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && value[0] == '/') return fs::path(value) / below / "servelab/kernels";
  }
  return {};
}

KernelChoice measured(kernels::DType type) {
  const auto measure = [type] { return kernels::fastest_kernels(type); };
  const fs::path folder = cache_folder();
  if (folder.empty()) return measure();
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  const std::string key =
      "servelab kernels 1\n" + processor_name() + "\nbuild " + build_id() + "\n";
  return kept_choice(folder / kernels::name(type), key, measure);
}

}  // namespace

KernelChoice kept_choice(const fs::path& file, const std::string& key,
                         const std::function<KernelChoice()>& measure) {
  const LockedFile kept(file);
  if (!kept.ok()) return measure();
  const std::string text = kept.read();
  if (text.starts_with(key) && text.ends_with('\n')) {
    const std::string_view line(text.data() + key.size(), text.size() - key.size());
    const auto choice = kernels::parse_choice(line.substr(0, line.empty() ? 0 : line.size() - 1));
    if (choice) return *choice;
  }
  const KernelChoice choice = measure();
  kept.write(key + kernels::text(choice) + "\n");
  return choice;
}

KernelChoice choose_kernels(const std::string& gemm, kernels::DType type) {
  for (const kernels::GemmLibrary library : kernels::kGemmLibraries) {
    if (gemm == kernels::name(library)) return {library, kernels::best_isa()};
  }
  if (std::getenv("SERVELAB_ISA") != nullptr) return {.isa = kernels::best_isa()};
  static std::mutex mutex;
  static std::map<kernels::DType, KernelChoice> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(type);
  if (found != known.end()) return found->second;
  return known.emplace(type, measured(type)).first->second;
}

}  // namespace servelab
