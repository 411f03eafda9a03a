// How ranks prove that they belong to one group, before anything else is read from them: each side
// draws a number, and shows an HMAC-SHA256 of both numbers under a secret that both know. What
// follows is neither signed nor encrypted.
#ifndef SERVELAB_BACKEND_RANKS_SECRET_H_
#define SERVELAB_BACKEND_RANKS_SECRET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace servelab::ranks {

struct GroupSecret {
  std::string text;      // empty: none
  bool is_open = false;  // whoever reaches rank 0 may come, also without a secret
  // Without either, ranks meet on the loopback interface only.
  bool reaches_others() const { return is_open || !text.empty(); }
};

inline constexpr std::size_t kShortestSecret = 16;  // bytes

using RandomNumber = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

RandomNumber draw_random_number();

enum class Prover : std::uint8_t { kRank0 = 1, kWorker };
Proof prove(const GroupSecret& secret, Prover who, const RandomNumber& of_rank_0,
            const RandomNumber& of_worker);
bool same(const Proof& a, const Proof& b);  // in a time that says nothing of where they differ

// Of a file that nobody but its owner can read: its content without the end of its last line.
// SpecError for one that others can read, or that has fewer than 16 bytes.
std::string read_secret(const std::string& file);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_SECRET_H_
