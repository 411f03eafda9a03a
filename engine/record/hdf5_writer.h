// Writes one HDF5 file: datasets with units and descriptions, attributes, text and external links.
// Long datasets are chunked, shuffled and deflated (by libdeflate, as HDF5 reads it).
// The file is built in memory and saved in one go (atomic_file.h), so that a full disk is an
// ordinary error with a message, and a file on disk is whole.
//
// Nothing in the file depends on the moment of writing: no object time stamps, fixed layout.
// content_digest() is the SHA-256 over every dataset outside /context, in path order, of
//   path \0 type \0 shape \0 bytes
// with type one of <i1 <i2 <i4 <i8 <u1 <u2 <f8 utf8; shape as "n" or "" for a scalar; numbers as
// little-endian bytes, texts as UTF-8, each entry of a list of texts followed by \0. Datasets must
// therefore be written in path order, which is checked; the text /context comes at the end, so that
// its length moves nothing else.
#ifndef SERVELAB_RECORD_HDF5_WRITER_H_
#define SERVELAB_RECORD_HDF5_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace servelab {

struct ElementType {
  bool real = false;
  bool is_signed = true;
  int bytes = 8;
};
template <class T>
constexpr ElementType element_type() {
  static_assert(std::is_arithmetic_v<T>);
  return {std::is_floating_point_v<T>, std::is_signed_v<T>, static_cast<int>(sizeof(T))};
}

// What a dataset says about itself.
struct DatasetText {
  std::string_view units;  // "ns", "tokens", "1", ...
  std::string_view description;
  std::span<const char* const> codes = {};  // for enumerated values: names by code
  std::string_view prometheus = {};         // vLLM's name for the metric, where it has one
};

class Hdf5Writer {
 public:
  // `name` is used in messages only. Holds hdf5_mutex() for its lifetime.
  explicit Hdf5Writer(std::string name);
  ~Hdf5Writer();
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;

  // Paths are absolute ("/requests/adapter"); groups on the way are created.
  template <class T>
  void dataset(const std::string& path, std::span<const T> values, const DatasetText& text) {
    numbers(path, values.data(), values.size(), element_type<T>(), text);
  }
  void texts(const std::string& path, const std::vector<std::string>& values,
             const DatasetText& text);
  void text(const std::string& path, const std::string& value, const DatasetText& text);

  // Attributes of a group ("/" is the root); the group is created.
  void attribute(const std::string& group, const std::string& name, const std::string& value);
  void attribute(const std::string& group, const std::string& name, std::int64_t value);
  void attribute(const std::string& group, const std::string& name, double value);

  // A link at `path` to the root of another file, relative to this file's folder.
  void external_link(const std::string& path, const std::string& file);

  std::string content_digest();     // once, after the last dataset outside /context
  std::vector<std::byte> finish();  // the file's bytes; the writer is done

 private:
  struct State;
  void numbers(const std::string& path, const void* data, std::size_t count, ElementType type,
               const DatasetText& text);
  void digest(const std::string& path, const std::string& type, const std::string& shape);

  std::unique_ptr<State> state_;
};

}  // namespace servelab

#endif  // SERVELAB_RECORD_HDF5_WRITER_H_
