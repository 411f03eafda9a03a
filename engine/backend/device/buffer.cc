#include "engine/backend/device/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "engine/core/cgroup.h"
#include "engine/core/check.h"
#include "engine/core/units.h"

namespace servelab {
namespace {

// Gives every page its memory now: a step should not pay for the first touch.
void touch(std::byte* data, std::size_t bytes) {
  const long page = ::sysconf(_SC_PAGESIZE);
  const std::size_t stride = page > 0 ? static_cast<std::size_t>(page) : 4096;
  for (std::size_t at = 0; at < bytes; at += stride) {
    *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

}  // namespace

Buffer::Buffer(std::size_t bytes, const char* what) {
  if (bytes == 0) return;
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw SpecError("out of memory: " + std::to_string(bytes / kMiB) + " MiB for " + what);
  }
#ifdef MADV_HUGEPAGE
  ::madvise(data, bytes, MADV_HUGEPAGE);
#endif
  data_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(data), Unmap{bytes});
  touch(data_.get(), bytes);
}

void Buffer::Unmap::operator()(std::byte* data) const { ::munmap(data, bytes); }

namespace {

std::size_t available_in_machine() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::size_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * kKiB;
  }
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return std::numeric_limits<std::size_t>::max();
  return static_cast<std::size_t>(pages) * static_cast<std::size_t>(page);
}

}  // namespace

std::size_t available_memory() {
  const std::size_t available = available_in_machine();
  const std::optional<Bytes> left = cgroup_limits().memory_left;
  return left ? std::min(available, static_cast<std::size_t>(*left)) : available;
}

Bytes machine_memory() {
  return static_cast<Bytes>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<Bytes>(::sysconf(_SC_PAGE_SIZE));
}

}  // namespace servelab
