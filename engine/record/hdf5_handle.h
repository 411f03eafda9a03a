// RAII around HDF5 identifiers, and one lock around the library: its distribution builds are not
// always thread-safe, so whoever calls HDF5 holds hdf5_mutex() for the whole file.
// Not HighFive: Debian 12 has no package of it, and hdf5_reader.cc on HighFive 2.9 is 202 lines in
// place of 215, takes 4.0 s in place of 2.0 s to compile, and leaves these handles to the writer.
#ifndef SERVELAB_RECORD_HDF5_HANDLE_H_
#define SERVELAB_RECORD_HDF5_HANDLE_H_

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

namespace servelab {

std::recursive_mutex& hdf5_mutex();

// The innermost message of HDF5's error stack, "" when there is none. Clears the stack.
std::string hdf5_error_text();

class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept { swap(other); }
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    swap(other);
    return *this;
  }
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  void swap(Hdf5Handle& other) {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
  }
  hid_t id_ = -1;
  Close close_ = nullptr;
};

}  // namespace servelab

#endif  // SERVELAB_RECORD_HDF5_HANDLE_H_
