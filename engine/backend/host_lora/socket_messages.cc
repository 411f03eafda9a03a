#include "engine/backend/host_lora/socket_messages.h"

#include <sys/socket.h>

#include <cerrno>

namespace servelab::host_lora {
namespace {

bool put(int socket, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket, from, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    from += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool get(int socket, void* data, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, to, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

template <class T>
bool put_all(int socket, const std::vector<T>& values) {
  return put(socket, values.data(), values.size() * sizeof(T));
}

template <class T>
bool get_all(int socket, std::size_t count, std::vector<T>* values) {
  values->resize(count);
  return get(socket, values->data(), count * sizeof(T));
}

}  // namespace

bool send(int socket, const Request& request) {
  return put(socket, &request.head, sizeof request.head) && put_all(socket, request.units) &&
         put_all(socket, request.rows);
}

bool send(int socket, const Reply& reply) {
  return put(socket, &reply.head, sizeof reply.head) && put_all(socket, reply.rows);
}

bool receive(int socket, Request* request) {
  return get(socket, &request->head, sizeof request->head) &&
         get_all(socket, request->head.units, &request->units) &&
         get_all(socket, request->head.bytes, &request->rows);
}

bool receive(int socket, Reply* reply) {
  return get(socket, &reply->head, sizeof reply->head) &&
         get_all(socket, reply->head.bytes, &reply->rows);
}

}  // namespace servelab::host_lora
