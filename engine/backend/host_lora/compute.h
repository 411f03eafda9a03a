// x A B of one piece and target: what a worker computes, and the engine where a worker is lost.
#ifndef SERVELAB_BACKEND_HOST_LORA_COMPUTE_H_
#define SERVELAB_BACKEND_HOST_LORA_COMPUTE_H_

#include <cstddef>

#include "engine/backend/host_lora/board.h"
#include "kernels/ops.h"

namespace servelab::host_lora {

// x[count][k] of rows.x_type, out[count][target.columns] of rows.out_type, row strides in elements.
// `pair` null: zeros. Results are f32 sums rounded once. Throws std::bad_alloc.
void compute(const kernels::Ops& ops, const Rows& rows, const Target& target,
             const kernels::LoraPair* pair, const std::byte* x, std::int64_t ldx, int k, int count,
             std::byte* out, std::int64_t ldo);

// Where a round's memory is in this process.
struct Memory {
  Board* board = nullptr;
  const Job* jobs = nullptr;
  const Piece* pieces = nullptr;
  const std::byte* x = nullptr;
  std::byte* out = nullptr;
  const std::byte* weights = nullptr;  // their begin here
};

// The matrix of an adapter whose table is at `adapter`, as this process sees it; rank 0: none.
kernels::LoraPair find(const Memory& memory, std::uint64_t adapter, int layer, int layer_kind);

// All units of a job at `position` of `workers`.
void compute_units(const kernels::Ops& ops, const Memory& memory, int job, int position,
                   int workers);

}  // namespace servelab::host_lora

#endif  // SERVELAB_BACKEND_HOST_LORA_COMPUTE_H_
