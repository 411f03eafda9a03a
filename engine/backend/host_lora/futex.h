// Sleeping on a word that several processes see.
#ifndef SERVELAB_BACKEND_HOST_LORA_FUTEX_H_
#define SERVELAB_BACKEND_HOST_LORA_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace servelab::host_lora {

// Returns when the word is no longer `seen`, when it is woken, after `longest`, or for no reason.
inline void sleep_on(std::atomic<std::uint32_t>* word, std::uint32_t seen,
                     std::chrono::nanoseconds longest) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  timespec limit{};
  limit.tv_sec = static_cast<std::time_t>(seconds.count());
  limit.tv_nsec = static_cast<long>((longest - seconds).count());
  ::syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void wake_all(std::atomic<std::uint32_t>* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace servelab::host_lora

#endif  // SERVELAB_BACKEND_HOST_LORA_FUTEX_H_
