#include "engine/record/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "engine/core/check.h"
#include "engine/core/digest.h"

namespace servelab {
namespace {

const std::string kTrailerLabel = "servelab-sha256:";

constexpr const char* kSuffix = ".servelab-tmp";

[[noreturn]] void fail(const std::string& path, const std::string& what, int error_number) {
  throw SpecError(path + ": " + what + ": " + system_reason(error_number));
}

// 0, or errno.
int write_all(int file, std::span<const std::byte> bytes) {
  constexpr std::size_t kAtOnce = std::size_t{64} << 20;
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote =
        ::write(file, bytes.data() + done, std::min(bytes.size() - done, kAtOnce));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    done += static_cast<std::size_t>(wrote);
  }
  return ::fsync(file) == 0 ? 0 : errno;
}

}  // namespace

std::string system_reason(int error_number) {
  const std::string text = std::strerror(error_number);
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return text + "; free some space or choose another folder with --out";
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EEXIST:
      return text + "; make the folder writable or choose another one with --out";
    default:
      return text + "; check the disk or choose another folder with --out";
  }
}

void refuse_to_replace(const std::string& option, const std::string& written,
                       const std::vector<std::string>& read) {
  for (const std::string& input : read) {
    std::error_code ignored;
    if (!std::filesystem::equivalent(written, input, ignored)) continue;
    throw SpecError(option + ": " + written + " would replace " + input +
                    ", which is read; choose another name");
  }
}

std::string checksum_trailer(std::span<const std::byte> bytes) {
  Sha256 sha;
  sha.update(bytes.data(), bytes.size());
  return kTrailerLabel + sha.hex();
}

bool has_valid_trailer(const std::string& path) {
  constexpr std::size_t kHexDigits = 64;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  const std::string text = content.str();
  const std::size_t trailer = kTrailerLabel.size() + kHexDigits;
  if (!file || text.size() < trailer) return false;
  const std::size_t body = text.size() - trailer;
  return text.compare(body, trailer,
                      checksum_trailer(std::as_bytes(std::span(text.data(), body)))) == 0;
}

void save_atomically(const std::string& path, std::span<const std::byte> bytes) {
  char host[256] = {};  // process ids of several machines may be equal
  ::gethostname(host, sizeof host - 1);
  const std::string temporary = path + "." + host + "-" + std::to_string(::getpid()) + kSuffix;
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail(path, "cannot be written", errno);
  int error = write_all(file, bytes);
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    fail(path, "cannot be written", error);
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int directory = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);  // the rename itself; a failure here loses at most this one file
    ::close(directory);
  }
}

bool is_temporary(const std::string& path) { return path.ends_with(kSuffix); }

void remove_stale_temporaries(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_temporary(entry.path())) std::filesystem::remove(entry.path(), error);
  }
}

}  // namespace servelab
