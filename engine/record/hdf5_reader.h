// Reads back what servelab needs of its own files: attributes, and number or text datasets.
#ifndef SERVELAB_RECORD_HDF5_READER_H_
#define SERVELAB_RECORD_HDF5_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace servelab {

class Hdf5Reader {
 public:
  // Throws SpecError for a file that is absent, truncated or not HDF5. Holds hdf5_mutex() for its
  // lifetime.
  explicit Hdf5Reader(std::string path);
  ~Hdf5Reader();
  Hdf5Reader(const Hdf5Reader&) = delete;
  Hdf5Reader& operator=(const Hdf5Reader&) = delete;

  bool has(const std::string& object) const;  // "/a/b"; every part of the way is looked at

  // Throw SpecError where the attribute or dataset is absent or of another kind.
  std::string text_attribute(const std::string& object, const std::string& name) const;
  std::int64_t int_attribute(const std::string& object, const std::string& name) const;
  std::vector<std::pair<std::string, double>> number_attributes(const std::string& object) const;

  std::vector<std::int64_t> integers(const std::string& dataset) const;
  std::vector<double> numbers(const std::string& dataset) const;
  std::vector<std::string> texts(const std::string& dataset) const;  // a scalar gives one

  // Hdf5Writer::content_digest() of what the file holds now. Throws SpecError for datasets that
  // cannot be read, or are of a type that servelab does not write.
  std::string content_digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace servelab

#endif  // SERVELAB_RECORD_HDF5_READER_H_
