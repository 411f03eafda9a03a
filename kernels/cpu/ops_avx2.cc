// Compiled for avx2 (see kernels/CMakeLists.txt): no code here may run before ops() chose it,
// and none may be shared with other units, so this includes only what is in anonymous namespaces.
#include "kernels/cpu/attention_kernel.h"
#include "kernels/cpu/elementwise_kernel.h"
#include "kernels/cpu/gemm_kernel.h"
#include "kernels/cpu/isa_tables.h"
#include "kernels/cpu/lora_kernel.h"
#include "kernels/cpu/vec_avx2.h"

namespace servelab::kernels {

constinit const Ops kAvx2Ops = {
    .isa = Isa::kAvx2,
    .name = "avx2",
    .gemm = gemm<Avx2>,
    .lora_shrink = lora_shrink<Avx2>,
    .lora_expand = lora_expand<Avx2>,
    .lora_merge = lora_merge<Avx2>,
    .attention = attention<Avx2>,
    .kv_write = kv_write<Avx2>,
    .rms_norm = rms_norm<Avx2>,
    .rope = rope<Avx2>,
    .swiglu = swiglu<Avx2>,
    .widen = widen<Avx2>,
    .narrow = narrow<Avx2>,
    .add_scaled = add_scaled<Avx2>,
};

}  // namespace servelab::kernels
