// Files that are whole or absent: written beside their place, flushed to the disk, renamed.
#ifndef SERVELAB_RECORD_ATOMIC_FILE_H_
#define SERVELAB_RECORD_ATOMIC_FILE_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace servelab {

// Saves `bytes` as `path`. Throws SpecError with the path, the system's reason and a remedy; the
// temporary file is gone then, and an earlier file at `path` is untouched.
void save_atomically(const std::string& path, std::span<const std::byte> bytes);

// Throws SpecError, naming `option`, where `written` is a file that is read too. Empty names are
// none.
void refuse_to_replace(const std::string& option, const std::string& written,
                       const std::vector<std::string>& read);

// A checksum line that is appended to a file's bytes. HDF5 ignores what follows its own end, but
// may crash on bytes that were damaged: so files are checked before the library opens them.
std::string checksum_trailer(std::span<const std::byte> bytes);

// Whether the file ends in the right trailer; false too when it cannot be read.
bool has_valid_trailer(const std::string& path);

// Whether this is a file that save_atomically() has not finished: of a process that is at it, or
// was killed.
bool is_temporary(const std::string& path);

// Removes what a killed run left half-written in `folder`; call it under the folder's lock.
void remove_stale_temporaries(const std::string& folder);

// "No space left on device" and the like, followed by what to do about it.
std::string system_reason(int error_number);

}  // namespace servelab

#endif  // SERVELAB_RECORD_ATOMIC_FILE_H_
