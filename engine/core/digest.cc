#include "engine/core/digest.h"

#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "engine/core/check.h"

namespace servelab {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  SL_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1, "SHA-256 unavailable");
}
Sha256::~Sha256() = default;

void Sha256::update(const void* data, std::size_t bytes) {
  SL_CHECK(EVP_DigestUpdate(state_->context, data, bytes) == 1, "SHA-256 update failed");
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> raw{};
  unsigned int size = 0;
  SL_CHECK(EVP_DigestFinal_ex(state_->context, raw.data(), &size) == 1, "SHA-256 failed");
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[raw[i] >> 4];
    text += kDigits[raw[i] & 15];
  }
  return text;
}

std::string sha256_hex(const std::string& text) {
  Sha256 sha;
  sha.update(text);
  return sha.hex();
}

std::string sha256_file_hex(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw SpecError(path + ": cannot be read: " + std::strerror(errno));
  Sha256 sha;
  std::array<char, 65536> buffer{};
  while (file.read(buffer.data(), buffer.size()) || file.gcount() > 0) {
    sha.update(buffer.data(), static_cast<std::size_t>(file.gcount()));
  }
  return sha.hex();
}

}  // namespace servelab
