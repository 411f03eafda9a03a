#include "engine/backend/ranks/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "engine/core/check.h"

namespace servelab::ranks {
namespace {

constexpr std::size_t kLongest = 4096;

}  // namespace

RandomNumber draw_random_number() {
  RandomNumber drawn;
  SL_CHECK(::RAND_bytes(reinterpret_cast<unsigned char*>(drawn.data()),
                        static_cast<int>(drawn.size())) == 1,
           "the system has random numbers");
  return drawn;
}

Proof prove(const GroupSecret& secret, Prover who, const RandomNumber& of_rank_0,
            const RandomNumber& of_worker) {
  std::vector<std::byte> message = {static_cast<std::byte>(who)};
  message.insert(message.end(), of_rank_0.begin(), of_rank_0.end());
  message.insert(message.end(), of_worker.begin(), of_worker.end());
  Proof proof;
  auto size = static_cast<unsigned int>(proof.size());
  const unsigned char* const made =
      ::HMAC(::EVP_sha256(), secret.text.data(), static_cast<int>(secret.text.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(),
             reinterpret_cast<unsigned char*>(proof.data()), &size);
  SL_CHECK(made != nullptr && size == proof.size(), "HMAC-SHA256 has 32 bytes");
  return proof;
}

bool same(const Proof& a, const Proof& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string read_secret(const std::string& file) {
  const int handle = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const auto refuse = [&](const std::string& why) {
    if (handle >= 0) ::close(handle);
    throw SpecError("--ranks-secret " + file + ": " + why);
  };
  if (handle < 0) refuse(std::strerror(errno));
  struct stat status {};
  if (::fstat(handle, &status) != 0 || !S_ISREG(status.st_mode)) refuse("is not a regular file");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) refuse("others can read it; chmod 600");
  std::string text(kLongest + 1, '\0');
  const ssize_t got = ::read(handle, text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (text.size() > kLongest) refuse("is longer than 4096 bytes");
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.size() < kShortestSecret) {
    refuse("has fewer than 16 bytes; make one with `openssl rand -hex 32`");
  }
  ::close(handle);
  return text;
}

}  // namespace servelab::ranks
