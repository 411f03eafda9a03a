// The naive versions: one loop nest per operation, written to be read. They are the oracle of every
// other version's tests, and what runs on a processor that has no version of its own.
#ifndef SERVELAB_KERNELS_REF_REF_H_
#define SERVELAB_KERNELS_REF_REF_H_

#include "kernels/ops.h"

namespace servelab::kernels::ref {

GemmFn gemm;
// With bf16 as dot products of pairs (vdpbf16ps) take it: of two neighbouring k the second comes
// first, each product is added with one rounding, and a subnormal number is zero. k is filled up to
// an even number with zeros.
GemmFn gemm_pairs;
LoraShrinkFn lora_shrink;
LoraExpandFn lora_expand;
LoraMergeFn lora_merge;
AttentionFn attention;
KvWriteFn kv_write;
RmsNormFn rms_norm;
RopeFn rope;
SwigluFn swiglu;
WidenFn widen;
NarrowFn narrow;
AddScaledFn add_scaled;

// Element i of a buffer of `type`.
float load(DType type, const void* data, std::int64_t i);
void store(DType type, void* data, std::int64_t i, float value);

// Element [column][k] of a packed matrix.
float at(const Panels& w, int column, int k);

}  // namespace servelab::kernels::ref

#endif  // SERVELAB_KERNELS_REF_REF_H_
