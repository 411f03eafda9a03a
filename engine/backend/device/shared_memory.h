// Memory that other processes can map too. It has no name: it is gone with the last process that
// has it, however that ends.
#ifndef SERVELAB_BACKEND_DEVICE_SHARED_MEMORY_H_
#define SERVELAB_BACKEND_DEVICE_SHARED_MEMORY_H_

#include <cstddef>

namespace servelab {

class SharedMemory {
 public:
  // Address space for `most` bytes, none of which is there yet. `what` is for errors. Throws
  // MachineError where the system has no such memory.
  SharedMemory(std::size_t most, const char* what);
  // Another process's, `most` as there.
  enum class Access { kRead, kWrite };
  SharedMemory(int descriptor, std::size_t most, Access access);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Makes the first `bytes` usable: the system has set memory aside for them, and it is zero.
  // Throws MachineError where there is not so much.
  void grow(std::size_t bytes);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }  // that are usable
  std::size_t most() const { return most_; }
  int descriptor() const { return descriptor_; }

 private:
  const char* const what_;
  const std::size_t most_;
  std::size_t size_ = 0;
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_SHARED_MEMORY_H_
