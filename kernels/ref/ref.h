// The naive versions: one loop nest per operation, written to be read. They are the oracle of every
// other version's tests, and what runs on a processor that has no version of its own.
#ifndef SERVELAB_KERNELS_REF_REF_H_
#define SERVELAB_KERNELS_REF_REF_H_

#include "kernels/ops.h"

namespace servelab::kernels::ref {

GemmFn gemm;
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
