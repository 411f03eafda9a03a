// Page-aligned memory for large arrays, zeroed, in huge pages where the system has them. It is
// there from the start: no step waits for a page.
#ifndef SERVELAB_BACKEND_DEVICE_BUFFER_H_
#define SERVELAB_BACKEND_DEVICE_BUFFER_H_

#include <cstddef>
#include <memory>

#include "engine/core/units.h"

namespace servelab {

class Buffer {
 public:
  Buffer() = default;
  // Throws SpecError naming `what` when the system refuses.
  Buffer(std::size_t bytes, const char* what);

  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return data_.get_deleter().bytes; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Unmap {
    std::size_t bytes;
    Unmap() : bytes(0) {}
    explicit Unmap(std::size_t size) : bytes(size) {}
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Unmap> data_;
};

// Memory that new allocations could take without swapping, in bytes, within the limits of the
// control groups that this process is in.
std::size_t available_memory();
// Bytes that it has in all.
Bytes machine_memory();

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_BUFFER_H_
