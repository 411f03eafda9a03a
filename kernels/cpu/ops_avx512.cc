// Compiled for avx512-bf16 (see kernels/CMakeLists.txt): no code here may run before ops() chose
// it, and none may be shared with other units, so this includes only what is in anonymous
// namespaces.
#include "kernels/cpu/attention_kernel.h"
#include "kernels/cpu/elementwise_kernel.h"
#include "kernels/cpu/gemm_kernel.h"
#include "kernels/cpu/isa_tables.h"
#include "kernels/cpu/lora_kernel.h"
#include "kernels/cpu/vec_avx512.h"

namespace servelab::kernels {
namespace {

constexpr Ops kWidening = {
    .isa = Isa::kAvx512Bf16,
    .name = "avx512-bf16",
    .gemm = gemm<Avx512>,
    .lora_shrink = lora_shrink<Avx512>,
    .lora_expand = lora_expand<Avx512>,
    .lora_merge = lora_merge<Avx512>,
    .attention = attention<Avx512>,
    .kv_write = kv_write<Avx512>,
    .rms_norm = rms_norm<Avx512>,
    .rope = rope<Avx512>,
    .swiglu = swiglu<Avx512>,
    .widen = widen<Avx512>,
    .narrow = narrow<Avx512>,
    .add_scaled = add_scaled<Avx512>,
};

}  // namespace

constinit const Ops kAvx512Bf16Ops = kWidening;

// As above, but for what multiplies pairs.
constinit const Ops kAvx512Bf16DotOps = [] {
  Ops ops = kWidening;
  ops.isa = Isa::kAvx512Bf16Dot;
  ops.name = "avx512-bf16-dot";
  ops.gemm = gemm<Avx512Dot>;
  ops.lora_shrink = lora_shrink<Avx512Dot>;
  ops.lora_expand = lora_expand<Avx512Dot>;
  ops.attention = attention<Avx512Dot>;
  return ops;
}();

}  // namespace servelab::kernels
