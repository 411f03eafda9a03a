// One table of operations per instruction set, and the naive reference, which is just another
// table. Which one runs is decided once, at run time, here and nowhere else.
#ifndef SERVELAB_KERNELS_OPS_H_
#define SERVELAB_KERNELS_OPS_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/lora.h"

namespace servelab::kernels {

enum class Isa : std::uint8_t {
  kReference,      // naive loops: the oracle, and the portable path
  kAvx2,           // AVX2 + FMA
  kAvx512Bf16,     // AVX-512 F, BW, DQ, VL and BF16; bf16 is widened and multiplied as f32
  kAvx512Bf16Dot,  // the same, with bf16 multiplied by dot products of pairs
};
inline constexpr Isa kIsas[] = {Isa::kReference, Isa::kAvx2, Isa::kAvx512Bf16, Isa::kAvx512Bf16Dot};

struct Ops {
  Isa isa;
  const char* name;  // "reference", "avx2", "avx512-bf16", "avx512-bf16-dot"
  GemmFn* gemm;
  LoraShrinkFn* lora_shrink;
  LoraExpandFn* lora_expand;
  LoraMergeFn* lora_merge;
  AttentionFn* attention;
  KvWriteFn* kv_write;
  RmsNormFn* rms_norm;
  RopeFn* rope;
  SwigluFn* swiglu;
  WidenFn* widen;
  NarrowFn* narrow;
  AddScaledFn* add_scaled;
};

bool supported(Isa isa);  // by this processor
// The fastest that this processor supports; SERVELAB_ISA=avx2 and the like overrides it, where
// supported. Which of the two ways to multiply bf16 is faster is measured, once in a process and
// in less than a millisecond: processors differ by a factor of two either way.
Isa best_isa();
const Ops& ops(Isa isa);  // supported(isa) holds

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_OPS_H_
