#include "engine/backend/host_lora/compute.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/backend/device/packed_adapter.h"

namespace servelab::host_lora {
namespace {

using kernels::DType;

std::size_t elements(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

// Of the calling thread, for one use at a time.
template <int use>
float* scratch(std::size_t count) {
  thread_local std::vector<float> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

}  // namespace

void compute(const kernels::Ops& ops, const Rows& rows, const Target& target,
             const kernels::LoraPair* pair, const std::byte* x, std::int64_t ldx, int k, int count,
             std::byte* out, std::int64_t ldo) {
  const std::size_t element = kernels::bytes_of(rows.out_type);
  if (pair == nullptr) {
    for (int row = 0; row < count; ++row) {
      std::memset(out + elements(row, ldo) * element, 0, elements(1, target.columns) * element);
    }
    return;
  }
  const void* input = x;
  if (rows.x_type != pair->a.type) {
    float* const wide = scratch<0>(elements(count, k));
    for (int row = 0; row < count; ++row) {
      ops.widen(rows.x_type, x + elements(row, ldx) * kernels::bytes_of(rows.x_type),
                wide + elements(row, k), k);
    }
    input = wide;
    ldx = k;
  }
  kernels::LoraPair used = *pair;
  if (!rows.scaled) used.scale = 1;
  const int ldt = kernels::shrink_stride(used.rank);
  const kernels::LoraRows all{0, count, &used};
  float* const t = scratch<1>(elements(count, ldt));
  ops.lora_shrink(kernels::LoraKind::kSgmv, all, used.rank, input, ldx, t, ldt);
  const bool direct = rows.out_type == DType::kF32;
  float* const y =
      direct ? reinterpret_cast<float*>(out) : scratch<2>(elements(count, target.columns));
  const std::int64_t ldy = direct ? ldo : target.columns;
  for (int row = 0; row < count; ++row) {
    std::fill_n(y + elements(row, ldy), target.columns, 0.0f);
  }
  ops.lora_expand(kernels::LoraKind::kSgmv, all, used.rank, t, ldt, y, ldy, 0, target.columns);
  for (int row = 0; row < count && !direct; ++row) {
    ops.narrow(y + elements(row, ldy), rows.out_type, out + elements(row, ldo) * element,
               target.columns);
  }
}

kernels::LoraPair find(const Memory& memory, std::uint64_t adapter, int layer, int layer_kind) {
  // In numbers: where workers are threads the weights begin at address 0.
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.weights);
  const auto* const table = reinterpret_cast<const kernels::LoraPair*>(begin + adapter);
  kernels::LoraPair pair = table[adapter_entry(layer, static_cast<LinearLayer>(layer_kind))];
  // Its panels' addresses are the engine's.
  const auto here = [&](const void* there) {
    const auto address = reinterpret_cast<std::uintptr_t>(there) - memory.board->weights;
    return reinterpret_cast<const void*>(begin + address);
  };
  if (pair.rank == 0) return pair;
  pair.a.data = here(pair.a.data);
  pair.b.data = here(pair.b.data);
  return pair;
}

void compute_units(const kernels::Ops& ops, const Memory& memory, int index, int position,
                   int workers) {
  const Round& round = memory.board->round;
  const Job& job = memory.jobs[index];
  const std::int64_t ldx = round.rows.ldx > 0 ? round.rows.ldx : job.k;
  const std::int64_t ldo = round.rows.ldo > 0 ? round.rows.ldo : job.n;
  for (int unit = position; unit < round.pieces * job.targets; unit += workers) {
    const Piece& piece = memory.pieces[unit / job.targets];
    const Target& target = job.target[static_cast<std::size_t>(unit % job.targets)];
    const kernels::LoraPair pair = find(memory, piece.adapter, job.layer, target.layer_kind);
    compute(ops, round.rows, target, pair.rank == 0 ? nullptr : &pair,
            memory.x + elements(piece.begin, ldx) * kernels::bytes_of(round.rows.x_type), ldx,
            job.k, piece.count,
            memory.out + (elements(piece.begin, ldo) + static_cast<std::size_t>(target.column)) *
                             kernels::bytes_of(round.rows.out_type),
            ldo);
  }
}

}  // namespace servelab::host_lora
