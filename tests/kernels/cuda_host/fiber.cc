#include "tests/kernels/cuda_host/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__x86_64__)
// Saves the registers that a call preserves on this stack, its pointer in *from, and goes on with
extern "C" void servelab_fiber_switch(void** from, void* to);
asm(R"(
.text
.globl servelab_fiber_switch
.type servelab_fiber_switch,@function
servelab_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size servelab_fiber_switch,.-servelab_fiber_switch
)");
#endif

namespace servelab::cuda_host {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr std::size_t kGuardBytes = 4096;  // an overflow stops here instead of in a neighbour

}  // namespace

struct Fiber::Context {
  char* memory = nullptr;  // guard, then stack
  Entry entry = nullptr;
  void* argument = nullptr;
#if defined(__x86_64__)
  void* own_stack = nullptr;
  void* callers_stack = nullptr;
#else
  ucontext_t own;
  ucontext_t caller;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* own_fake = nullptr;
  void* callers_fake = nullptr;
  const void* callers_bottom = nullptr;
  std::size_t callers_size = 0;
#endif

  static Context* starting;  // handed to a new stack's first function
  static void begin() {
    Context* const context = starting;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &context->callers_bottom, &context->callers_size);
#endif
    context->entry(context->argument);
    std::abort();
  }
};
Fiber::Context* Fiber::Context::starting = nullptr;

Fiber::Fiber() : context_(std::make_unique<Context>()) {
  void* const memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
    std::perror("a stack for a device thread");
    std::abort();
  }
  context_->memory = static_cast<char*>(memory);
}

Fiber::~Fiber() { munmap(context_->memory, kGuardBytes + kStackBytes); }

void Fiber::start(Entry entry, void* argument) {
  context_->entry = entry;
  context_->argument = argument;
#if defined(__SANITIZE_ADDRESS__)
  // Frames of what ran here before have left their marks.
  __asan_unpoison_memory_region(context_->memory + kGuardBytes, kStackBytes);
#endif
#if defined(__x86_64__)
  // From the top: the return address of a caller that is not there, begin(), six registers.
  auto* top = reinterpret_cast<void**>(context_->memory + kGuardBytes + kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Context::begin);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context_->own_stack = top;
#else
  getcontext(&context_->own);
  context_->own.uc_stack.ss_sp = context_->memory + kGuardBytes;
  context_->own.uc_stack.ss_size = kStackBytes;
  context_->own.uc_link = nullptr;
  makecontext(&context_->own, &Context::begin, 0);
#endif
}

void Fiber::enter() {
  Context::starting = context_.get();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&context_->callers_fake, context_->memory + kGuardBytes,
                                 kStackBytes);
#endif
#if defined(__x86_64__)
  servelab_fiber_switch(&context_->callers_stack, context_->own_stack);
#else
  swapcontext(&context_->caller, &context_->own);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(context_->callers_fake, nullptr, nullptr);
#endif
}

void Fiber::leave() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&context_->own_fake, context_->callers_bottom,
                                 context_->callers_size);
#endif
#if defined(__x86_64__)
  servelab_fiber_switch(&context_->own_stack, context_->callers_stack);
#else
  swapcontext(&context_->own, &context_->caller);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(context_->own_fake, &context_->callers_bottom,
                                  &context_->callers_size);
#endif
}

}  // namespace servelab::cuda_host
