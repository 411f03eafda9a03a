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
  kReference,   // naive loops: the oracle, and the portable path
  kAvx2,        // AVX2 + FMA
  kAvx512Bf16,  // AVX-512 F, BW, DQ, VL and BF16
};

struct Ops {
  Isa isa;
  const char* name;  // "reference", "avx2", "avx512-bf16"
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
Isa best_isa();           // SERVELAB_ISA=avx2 and the like overrides it, where supported
const Ops& ops(Isa isa);  // supported(isa) holds

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_OPS_H_
