#include "engine/run/adapter_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/core/check.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

// Writes back and forgets the cached pages of a file.
void drop_from_page_cache(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  ::fdatasync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

class AdapterFolder final : public AdapterSource {
 public:
  AdapterFolder(const ModelConfig& model, const std::vector<std::string>& targets,
                const Workload& workload)
      : model_(model) {
    std::string name = (fs::temp_directory_path() / "servelab-adapters-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw SpecError(name + ": cannot make a folder for adapters: " + std::strerror(errno));
    }
    root_ = name;
    try {
      for (std::size_t i = 0; i < workload.adapters.size(); ++i) {
        const Adapter& adapter = workload.adapters[i];
        save_peft_adapter(*random_adapter(model, adapter.name, adapter.rank, targets, i), model,
                          folder(i).string());
      }
    } catch (...) {
      remove();
      throw;
    }
  }
  ~AdapterFolder() override { remove(); }
  AdapterFolder(const AdapterFolder&) = delete;
  AdapterFolder& operator=(const AdapterFolder&) = delete;

  std::shared_ptr<const LoraWeights> load(AdapterId id) override {
    drop_from_page_cache(folder(index(id)) / "adapter_model.safetensors");
    return load_peft_adapter(folder(index(id)).string(), model_);
  }

 private:
  fs::path folder(std::size_t i) const { return root_ / std::to_string(i); }
  void remove() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  ModelConfig model_;
  fs::path root_;
};

}  // namespace

std::unique_ptr<AdapterSource> make_adapter_folder(const ModelConfig& model,
                                                   const std::vector<std::string>& targets,
                                                   const Workload& workload) {
  return std::make_unique<AdapterFolder>(model, targets, workload);
}

}  // namespace servelab
