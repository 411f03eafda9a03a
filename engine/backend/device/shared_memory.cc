#include "engine/backend/device/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "engine/backend/device/buffer.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

[[noreturn]] void refuse(const char* what, std::size_t bytes, const std::string& why) {
  throw MachineError("shared memory: no " + std::to_string((bytes + kMiB - 1) / kMiB) +
                     " MiB for " + what + ": " + why);
}

std::byte* map(int descriptor, std::size_t bytes, int protection) {
  void* const data = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

}  // namespace

SharedMemory::SharedMemory(std::size_t most, const char* what) : what_(what), most_(most) {
  descriptor_ = ::memfd_create("servelab", MFD_CLOEXEC);
  if (descriptor_ < 0) refuse(what, most, std::strerror(errno));
  data_ = map(descriptor_, most, PROT_READ | PROT_WRITE);
  if (data_ != nullptr) return;
  const int error = errno;
  ::close(descriptor_);
  refuse(what, most, std::strerror(error));
}

SharedMemory::SharedMemory(int descriptor, std::size_t most, Access access)
    : what_("a worker"), most_(most), size_(most), descriptor_(descriptor) {
  data_ = map(descriptor, most, access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ);
  if (data_ == nullptr) refuse(what_, most, std::strerror(errno));
}

SharedMemory::~SharedMemory() {
  ::munmap(data_, most_);
  ::close(descriptor_);
}

void SharedMemory::grow(std::size_t bytes) {
  if (bytes <= size_) return;
  if (bytes > most_) refuse(what_, bytes, "it has address space for less");
  const std::size_t more = bytes - size_;
  // The system would promise more than it has, and end the process that touches it.
  if (const std::size_t available = available_memory(); more > available) {
    refuse(what_, more, "this machine has " + std::to_string(available / kMiB) + " MiB available");
  }
  const int error =
      ::posix_fallocate(descriptor_, static_cast<off_t>(size_), static_cast<off_t>(more));
  if (error != 0) refuse(what_, more, std::strerror(error));
  size_ = bytes;
}

}  // namespace servelab
