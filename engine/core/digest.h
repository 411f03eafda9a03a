// Digests: SHA-256 for content that people compare, and a cheap running hash for streams that are
// too long to keep (one decision log of a million steps).
#ifndef SERVELAB_CORE_DIGEST_H_
#define SERVELAB_CORE_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace servelab {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, std::size_t bytes);
  void update(const std::string& text) { update(text.data(), text.size()); }
  std::string hex();  // finishes; call once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(const std::string& text);
std::string sha256_file_hex(const std::string& path);  // throws SpecError if unreadable

// Order-sensitive 64-bit hash of a stream of words; the same on every platform. Not cryptographic.
class StreamHash {
 public:
  void add(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15ull;
    state_ ^= state_ >> 29;
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x243F6A8885A308D3ull;
};

}  // namespace servelab

#endif  // SERVELAB_CORE_DIGEST_H_
