#include "engine/model/model_digest.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "engine/core/check.h"
#include "engine/core/digest.h"
#include "engine/core/params.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDigits = 16;
constexpr std::size_t kSampleBytes = std::size_t{1} << 20;  // of a file's beginning and end

std::string sample(const fs::path& path, std::uintmax_t size) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(std::min<std::uintmax_t>(size, kSampleBytes), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::string end = bytes;
  file.seekg(static_cast<std::streamoff>(size - bytes.size()));
  file.read(end.data(), static_cast<std::streamsize>(end.size()));
  if (!file) throw SpecError(path.string() + ": cannot be read");
  return bytes + end;
}

}  // namespace

std::string model_digest(const ModelConfig& model) {
  ModelConfig copy = model;
  copy.source.clear();
  Sha256 sum;
  if (copy.weights != "random") {
    std::set<fs::path> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(copy.weights, error)) {
      const std::string kind = entry.path().extension();
      if (kind == ".json" || kind == ".safetensors") files.insert(entry.path());
    }
    for (const fs::path& path : files) {
      const std::uintmax_t size = fs::file_size(path, error);
      if (error) throw SpecError(path.string() + ": cannot be read");
      sum.update(path.filename().string() + " " + std::to_string(size) + "\n");
      sum.update(sample(path, size));
    }
    copy.weights = "a folder";
  }
  sum.update(canonical_json(effective_params(&copy)));
  return sum.hex().substr(0, kDigits);
}

}  // namespace servelab
