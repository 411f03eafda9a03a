// The other transport: x and x A B by a socket to each worker (CaraServe's Figure 17).
#ifndef SERVELAB_BACKEND_HOST_LORA_SOCKET_MESSAGES_H_
#define SERVELAB_BACKEND_HOST_LORA_SOCKET_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend/host_lora/board.h"

namespace servelab::host_lora {

struct Unit {
  std::uint64_t adapter = 0;
  std::int32_t target = 0;  // of the job
  std::int32_t count = 0;   // rows
};

// A worker's units of a job, and their rows of x, one unit behind the other.
struct Request {
  struct Head {
    std::uint32_t number = 0;
    std::uint32_t units = 0;
    std::uint64_t bytes = 0;
    Rows rows;
    Job job;
  } head;
  std::vector<Unit> units;
  std::vector<std::byte> rows;

  std::size_t x_bytes(const Unit& unit) const {
    return static_cast<std::size_t>(unit.count) * static_cast<std::size_t>(head.job.k) *
           kernels::bytes_of(head.rows.x_type);
  }
  std::size_t result_bytes(const Unit& unit) const {
    const Target& target = head.job.target[static_cast<std::size_t>(unit.target)];
    return static_cast<std::size_t>(unit.count) * static_cast<std::size_t>(target.columns) *
           kernels::bytes_of(head.rows.out_type);
  }
  std::size_t result_bytes() const {
    std::size_t bytes = 0;
    for (const Unit& unit : units) bytes += result_bytes(unit);
    return bytes;
  }
};

// Rows of results, one unit behind the other.
struct Reply {
  struct Head {
    std::uint32_t number = 0;
    std::int64_t compute_ns = 0;
    std::int64_t computed_at = 0;  // steady clock, ns
    std::uint64_t bytes = 0;
  } head;
  std::vector<std::byte> rows;
};

// False where the other end is gone, or does not take or give anything for the socket's own time
// limits.
bool send(int socket, const Request& request);
bool send(int socket, const Reply& reply);
bool receive(int socket, Request* request);
bool receive(int socket, Reply* reply);

}  // namespace servelab::host_lora

#endif  // SERVELAB_BACKEND_HOST_LORA_SOCKET_MESSAGES_H_
