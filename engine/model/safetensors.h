// Files of tensors in the safetensors format: 8 bytes of header length, a JSON header, raw data.
// The reader maps files into memory and trusts nothing: lengths, offsets, types and shapes are
// checked when a file is opened, values when a tensor is handed out. Every error is a SpecError of
// one line with the file and the tensor.
#ifndef SERVELAB_MODEL_SAFETENSORS_H_
#define SERVELAB_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/weights.h"

namespace servelab {

// The bytes of a file, mapped read-only.
class MappedFile {
 public:
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Throws when the file has been cut short since it was opened: reading on would be a SIGBUS. The
  // file is not held open: a run may have more adapters than it may have descriptors.
  void check_whole() const;

 private:
  std::string path_;
  std::uint64_t device_ = 0, inode_ = 0;
  std::span<const std::byte> bytes_;
};

struct StoredTensor {
  std::string type;  // as written: F32, BF16, F16, I64, ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::string shape_text() const;  // "[64, 128]"
};

// Parses a whole file; the spans point into `bytes`. `name` is for messages. Keys are sorted.
std::map<std::string, StoredTensor> parse_safetensors(std::span<const std::byte> bytes,
                                                      const std::string& name);

// The tensor as engines take it: F32, F16 or BF16, of one dimension (a row) or two. Refuses other
// types and shapes, and values that are not finite. The data are copied when they are not aligned;
// otherwise `owner` keeps them alive.
Tensor to_tensor(const StoredTensor& stored, std::shared_ptr<const void> owner,
                 const std::string& file, const std::string& name);

// One file, or the files that an index lists.
class TensorFiles {
 public:
  static TensorFiles open_file(const std::string& path);
  // <folder>/<stem>.safetensors, or the shards of <folder>/<stem>.safetensors.index.json.
  static TensorFiles open_folder(const std::string& folder, const std::string& stem);

  struct Entry {
    std::shared_ptr<const MappedFile> file;
    StoredTensor stored;
  };
  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::string& path() const { return path_; }  // the file, or the index

  // kVector rows ask for one dimension. SpecError when it is missing or has another shape, and as
  // to_tensor().
  static constexpr int kVector = 0;
  Tensor take(const std::string& name, int rows, int columns) const;
  // The checks of take() that need no values: presence, type and shape.
  void check(const std::string& name, int rows, int columns) const;

 private:
  void add(const std::string& path);
  void add_shards(const std::string& folder);
  const Entry& entry(const std::string& name) const;

  std::string path_;
  std::map<std::string, Entry> entries_;
};

// The bytes of a file with these tensors, in this order, aligned to 8 bytes; two dimensions, or one
// where `one_row_is_vector` and a tensor has one row.
std::string safetensors_bytes(const std::vector<std::pair<std::string, Tensor>>& tensors,
                              bool one_row_is_vector = false);

}  // namespace servelab

#endif  // SERVELAB_MODEL_SAFETENSORS_H_
