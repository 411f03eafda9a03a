#include "kernels/ops.h"

#ifdef SERVELAB_HAVE_X86
#include <cpuid.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "kernels/cpu/isa_tables.h"
#include "kernels/cpu/peak.h"
#include "kernels/ref/ref.h"

namespace servelab::kernels {
namespace {

constinit const Ops kReferenceOps = {
    .isa = Isa::kReference,
    .name = "reference",
    .gemm = ref::gemm,
    .lora_shrink = ref::lora_shrink,
    .lora_expand = ref::lora_expand,
    .lora_merge = ref::lora_merge,
    .attention = ref::attention,
    .kv_write = ref::kv_write,
    .rms_norm = ref::rms_norm,
    .rope = ref::rope,
    .swiglu = ref::swiglu,
    .widen = ref::widen,
    .narrow = ref::narrow,
    .add_scaled = ref::add_scaled,
};

// Whether this processor does more bf16 products in dot products than widened. The best of several
// turns: what disturbs one only ever adds.
bool dots_are_faster() {
  using Clock = std::chrono::steady_clock;
  constexpr int kTurns = 5;
  constexpr int kRounds = 10000;
  double most[2] = {};
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const DType type : {DType::kF32, DType::kBf16}) {
      const auto start = Clock::now();
      const double flops = spend_flops(Isa::kAvx512Bf16Dot, type, kRounds);
      const double time = std::chrono::duration<double>(Clock::now() - start).count();
      double& best = most[type == DType::kBf16];
      best = std::max(best, flops / time);
    }
  }
  return most[1] > most[0];
}

Isa choose_isa() {
  const char* wanted = std::getenv("SERVELAB_ISA");
  if (wanted != nullptr) {
    for (const Isa isa : kIsas) {
      if (supported(isa) && std::string_view(wanted) == ops(isa).name) return isa;
    }
  }
  if (supported(Isa::kAvx512Bf16Dot)) {
    return dots_are_faster() ? Isa::kAvx512Bf16Dot : Isa::kAvx512Bf16;
  }
  return supported(Isa::kAvx2) ? Isa::kAvx2 : Isa::kReference;
}

#ifdef SERVELAB_HAVE_X86
// Older Clangs' __builtin_cpu_supports() knows neither; it does know whether the system keeps the
// registers.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1u << 5) != 0;
}
#endif

}  // namespace

bool supported(Isa isa) {
  if (isa == Isa::kReference) return true;
#ifdef SERVELAB_HAVE_X86
  if (isa == Isa::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  }
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         has_avx512_bf16();
#else
  return false;
#endif
}

Isa best_isa() {
  static const Isa isa = choose_isa();
  return isa;
}

const Ops& ops(Isa isa) {
#ifdef SERVELAB_HAVE_X86
  if (isa == Isa::kAvx2) return kAvx2Ops;
  if (isa == Isa::kAvx512Bf16) return kAvx512Bf16Ops;
  if (isa == Isa::kAvx512Bf16Dot) return kAvx512Bf16DotOps;
#endif
  static_cast<void>(isa);
  return kReferenceOps;
}

}  // namespace servelab::kernels
