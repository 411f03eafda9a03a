// Files of tensors on disk, and the tensors that engines take from them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>

#include "engine/core/check.h"
#include "engine/model/json_file.h"
#include "engine/model/safetensors.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using kernels::DType;

// The index of the first element whose exponent bits are all set, or `count`. The inner loop has no
// exit, so that it can be vectorised.
template <class Word>
std::size_t first_non_finite(const void* data, std::size_t count, Word exponent) {
  constexpr std::size_t kBlock = 4096;
  const auto* words = static_cast<const Word*>(data);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, count);
    Word found = 0;
    for (std::size_t i = begin; i < end; ++i) {
      found = static_cast<Word>(found | static_cast<Word>((words[i] & exponent) == exponent));
    }
    if (found == 0) continue;
    for (std::size_t i = begin; i < end; ++i) {
      if ((words[i] & exponent) == exponent) return i;
    }
  }
  return count;
}

std::size_t first_non_finite(DType type, const void* data, std::size_t count) {
  switch (type) {
    case DType::kF32:
      return first_non_finite<std::uint32_t>(data, count, 0x7f800000u);
    case DType::kBf16:
      return first_non_finite<std::uint16_t>(data, count, 0x7f80u);
    case DType::kF16:
      return first_non_finite<std::uint16_t>(data, count, 0x7c00u);
  }
  return count;
}

bool known_type(const std::string& text, DType* type) {
  if (text == "F32") *type = DType::kF32;
  if (text == "F16") *type = DType::kF16;
  if (text == "BF16") *type = DType::kBf16;
  return text == "F32" || text == "F16" || text == "BF16";
}

[[noreturn]] void fail(const std::string& file, const std::string& tensor,
                       const std::string& what) {
  throw SpecError(file + ": tensor '" + tensor + "': " + what);
}

// The tensor without its data.
Tensor described(const StoredTensor& stored, const std::string& file, const std::string& name) {
  Tensor tensor;
  if (!known_type(stored.type, &tensor.type)) {
    fail(file, name, "dtype " + stored.type + "; servelab reads F32, F16 and BF16");
  }
  const auto largest = std::numeric_limits<int>::max();
  const bool fits = std::all_of(stored.shape.begin(), stored.shape.end(), [&](std::int64_t extent) {
    return extent >= 1 && extent <= largest;
  });
  if (stored.shape.empty() || stored.shape.size() > 2 || !fits) {
    fail(file, name, "shape " + stored.shape_text() + "; servelab takes vectors and matrices");
  }
  tensor.rows = stored.shape.size() == 1 ? 1 : static_cast<int>(stored.shape.front());
  tensor.columns = static_cast<int>(stored.shape.back());
  return tensor;
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // Non-blocking: a named pipe must not wait for a writer.
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const auto refuse = [this, file](const std::string& what) {
    if (file >= 0) ::close(file);
    throw SpecError(path_ + ": " + what);
  };
  if (file < 0) {
    refuse(errno == ENOENT ? "no such file"
                           : "cannot be opened: " + std::string(std::strerror(errno)));
  }
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) refuse("is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) refuse("is empty");
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) refuse("cannot be mapped: " + std::string(std::strerror(errno)));
  bytes_ = {static_cast<const std::byte*>(data), size};
  device_ = status.st_dev;
  inode_ = status.st_ino;
  ::close(file);
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

void MappedFile::check_whole() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return;  // deleted: what is mapped stays as it is
  const bool replaced = status.st_dev != device_ || status.st_ino != inode_;
  if (!replaced && static_cast<std::size_t>(status.st_size) < bytes_.size()) {
    throw SpecError(path_ + ": was cut short while it was in use; load it again");
  }
}

Tensor to_tensor(const StoredTensor& stored, std::shared_ptr<const void> owner,
                 const std::string& file, const std::string& name) {
  Tensor tensor = described(stored, file, name);
  tensor.data = stored.bytes.data();
  tensor.owner = std::move(owner);
  const std::size_t width = kernels::bytes_of(tensor.type);
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % width != 0) {
    std::shared_ptr<std::byte[]> copy(new std::byte[stored.bytes.size()]);
    std::memcpy(copy.get(), stored.bytes.data(), stored.bytes.size());
    tensor.data = copy.get();
    tensor.owner = copy;
  }
  const std::size_t count = stored.bytes.size() / width;
  const std::size_t bad = first_non_finite(tensor.type, tensor.data, count);
  if (bad < count) {
    const auto columns = static_cast<std::size_t>(tensor.columns);
    std::string index = std::to_string(bad % columns);
    if (stored.shape.size() == 2) index = std::to_string(bad / columns) + ", " + index;
    fail(file, name, "the value at [" + index + "] is not finite");
  }
  return tensor;
}

void TensorFiles::add(const std::string& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  for (auto& [name, stored] : parse_safetensors(file->bytes(), path)) {
    const auto [place, fresh] = entries_.emplace(name, Entry{file, std::move(stored)});
    if (!fresh) fail(path, name, "is in " + place->second.file->path() + " too");
  }
}

TensorFiles TensorFiles::open_file(const std::string& path) {
  TensorFiles files;
  files.path_ = path;
  files.add(path);
  return files;
}

TensorFiles TensorFiles::open_folder(const std::string& folder, const std::string& stem) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) throw SpecError(folder + ": no such folder");
  const std::string whole = fs::path(folder) / (stem + ".safetensors");
  const std::string index = whole + ".index.json";
  const bool has_index = fs::exists(index, ignored);
  if (fs::exists(whole, ignored) || !has_index) {
    if (!fs::exists(whole, ignored)) {
      throw SpecError(folder + ": holds neither " + stem + ".safetensors nor " + stem +
                      ".safetensors.index.json");
    }
    return open_file(whole);
  }
  TensorFiles files;
  files.path_ = index;
  files.add_shards(folder);
  return files;
}

void TensorFiles::add_shards(const std::string& folder) {
  const Json json = parse_json<Json>(read_text_file(path_), path_);
  const JsonObject root(json, path_);
  if (!root.has("weight_map")) root.refuse("weight_map", "is missing");
  const JsonObject map(*root.find("weight_map"), path_, "weight_map");
  std::map<std::string, std::string> shard_of;
  std::set<std::string> shards;
  for (const auto& [name, shard] : map.json().items()) {
    const std::string file = map.text(name, "");
    if (file.empty() || file.find('/') != std::string::npos || file == "..") {
      map.refuse(name, "must name a file of the folder; got " + shown(shard));
    }
    shard_of[name] = file;
    shards.insert(file);
  }
  for (const std::string& shard : shards) add(fs::path(folder) / shard);
  for (const auto& [name, shard] : shard_of) {
    const auto found = entries_.find(name);
    if (found == entries_.end() || fs::path(found->second.file->path()).filename() != shard) {
      fail(path_, name, "is not in " + shard + ", where the index places it");
    }
  }
  for (const auto& [name, entry] : entries_) {
    if (shard_of.count(name) == 0) fail(entry.file->path(), name, "is not in the index");
  }
}

const TensorFiles::Entry& TensorFiles::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  throw SpecError(path_ + ": tensor '" + name + "' is missing");
}

void TensorFiles::check(const std::string& name, int rows, int columns) const {
  const Entry& found = entry(name);
  const Tensor tensor = described(found.stored, found.file->path(), name);
  const bool is_vector = found.stored.shape.size() == 1;
  const bool fits = is_vector == (rows == kVector) && (is_vector || tensor.rows == rows);
  if (fits && tensor.columns == columns) return;
  const std::string first = rows == kVector ? "" : std::to_string(rows) + ", ";
  const std::string wanted = first + std::to_string(columns);
  fail(found.file->path(), name,
       "has shape " + found.stored.shape_text() + ", but the model needs [" + wanted + "]");
}

Tensor TensorFiles::take(const std::string& name, int rows, int columns) const {
  check(name, rows, columns);
  const Entry& found = entry(name);
  found.file->check_whole();
  return to_tensor(found.stored, found.file, found.file->path(), name);
}

}  // namespace servelab
