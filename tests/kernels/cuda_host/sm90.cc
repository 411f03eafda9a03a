// Tensor copies and products of a warpgroup, by the layouts of the PTX ISA: 128-byte swizzle,
// matrix descriptors, fragments of wgmma.m64nNk16.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/tensor_map.h"
#include "tests/kernels/cuda_host/platform_host.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kBoxColumns = 64;
constexpr int kRowBytes = 2 * kBoxColumns;
constexpr int kAtom = 1024;  // bytes that a swizzle repeats after
constexpr int kWarpgroup = 128;
constexpr int kWaitBarrier = 15;

// A barrier's 8 bytes: bytes that are still to come, and phases that have ended.
struct CopyBarrier {
  std::int32_t pending;
  std::int32_t ended;
};
CopyBarrier& barrier_at(std::uint64_t* barrier, const Where& where) {
  host::require(host::in_shared_memory(barrier, sizeof(CopyBarrier)),
                "a copy barrier outside of shared memory", where);
  return *reinterpret_cast<CopyBarrier*>(barrier);
}

struct PendingBox {
  std::uint64_t* barrier;
  char* shared;
  TensorMap map;
  int column;
  int row;
};
// Blocks run one after another.
std::vector<PendingBox> pending_boxes;

// Bits 4 to 6 of an address are its 16-byte chunk; they are exchanged with bits 7 to 9.
std::size_t swizzled(std::size_t offset) { return offset ^ (offset >> 7 & 7) << 4; }

void finish(const PendingBox& box) {
  std::memset(box.shared, 0, static_cast<std::size_t>(box.map.box_rows * kRowBytes));
  const std::size_t base = static_cast<std::size_t>(box.shared - host::shared_memory());
  for (int i = 0; i < box.map.box_rows; ++i) {
    for (int j = 0; j < kBoxColumns; ++j) {
      const std::int64_t row = box.row + i;
      const std::int64_t column = box.column + j;
      if (row < 0 || row >= box.map.rows || column < 0 || column >= box.map.columns) continue;
      const std::size_t to = swizzled(base + static_cast<std::size_t>(i * kRowBytes + 2 * j));
      std::memcpy(host::shared_memory() + to,
                  box.map.data + row * box.map.stride_bytes + 2 * column, 2);
    }
  }
}

void whole_warp(const char* name, const Where& where) {
  host::warp_operation(
      name, nullptr, [](void* const(&)[32]) {}, where);
}

int thread_of_warpgroup() { return static_cast<int>(threadIdx.x) % kWarpgroup; }

// Element (row, k) of what a descriptor names.
template <class T>
float element_of(std::uint64_t descriptor, int row, int k, const Where& where) {
  const auto start = static_cast<std::size_t>(descriptor & 0x3fff) << 4;
  const auto eight_rows = static_cast<std::size_t>(descriptor >> 32 & 0x3fff) << 4;
  host::require(descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0,
                "a descriptor without 128-byte swizzle", where);
  const std::size_t offset = swizzled(start + static_cast<std::size_t>(row / 8) * eight_rows +
                                      static_cast<std::size_t>(row % 8 * kRowBytes + 2 * k));
  const char* const at = host::shared_memory() + offset;
  host::require(host::in_shared_memory(at, 2), "an operand outside of shared memory", where);
  T value;
  std::memcpy(&value, at, sizeof(value));
  return to_f32(value);
}

}  // namespace

void copy_barrier_init(std::uint64_t* barrier, const Where& where) {
  barrier_at(barrier, where) = {0, 0};
  pending_boxes.clear();
}

void copy_barrier_expect(std::uint64_t* barrier, int bytes, const Where& where) {
  CopyBarrier& state = barrier_at(barrier, where);
  host::require(state.pending == 0, "a second arrival in a phase", where);
  state.pending = bytes;
}

void copy_barrier_wait(std::uint64_t* barrier, int phase, const Where& where) {
  host::block_barrier(kWaitBarrier, static_cast<int>(blockDim.x), where);
  for (const PendingBox& box : pending_boxes) {
    if (box.barrier != barrier) continue;
    finish(box);
    CopyBarrier& state = barrier_at(barrier, where);
    state.pending -= box.map.box_rows * kRowBytes;
    host::require(state.pending >= 0, "more bytes than the barrier expects", where);
    if (state.pending == 0) ++state.ended;
  }
  std::erase_if(pending_boxes, [&](const PendingBox& box) { return box.barrier == barrier; });
  const CopyBarrier& state = barrier_at(barrier, where);
  // On a GPU only the parity is compared: a wait for a phase more than one ahead does not wait.
  host::require(state.ended == phase + 1, "waits for a phase that does not end", where);
}

void copy_box(void* shared, const TensorMap& map, int column, int row, std::uint64_t* barrier,
              const Where& where) {
  const auto bytes = static_cast<std::size_t>(map.box_rows * kRowBytes);
  host::require(host::in_shared_memory(shared, bytes), "a box outside of shared memory", where);
  host::require((static_cast<char*>(shared) - host::shared_memory()) % kAtom == 0,
                "a box that is not 1024-byte aligned", where);
  std::memset(shared, 0xff, bytes);
  pending_boxes.push_back({barrier, static_cast<char*>(shared), map, column, row});
}

void products_begin(const Where& where) { whole_warp("products_begin", where); }
void products_commit(const Where& where) { whole_warp("products_commit", where); }
void products_wait(const Where& where) { whole_warp("products_wait", where); }

std::uint64_t rows_for_product(const void* tile, int step, const Where& where) {
  const auto offset = static_cast<const char*>(tile) - host::shared_memory();
  host::require(offset % kAtom == 0, "an operand that is not 1024-byte aligned", where);
  const auto start = static_cast<std::uint64_t>(offset + 32 * step);
  return (start & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | std::uint64_t{kAtom / 16} << 32 |
         std::uint64_t{1} << 62;
}

template <class T>
void multiply_rows(float* sums, int columns, std::uint64_t a, std::uint64_t b, const Where& where) {
  whole_warp("multiply_rows", where);
  const int warp = thread_of_warpgroup() / 32;
  const int lane = thread_of_warpgroup() % 32;
  constexpr int kDepth = 16;
  float rows[2][kDepth];
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < kDepth; ++k) {
      rows[half][k] = element_of<T>(a, 16 * warp + 8 * half + lane / 4, k, where);
    }
  }
  for (int column = 2 * (lane % 4); column < columns; column += column % 2 == 0 ? 1 : 7) {
    for (int half = 0; half < 2; ++half) {
      float& sum = sums[column / 8 * 4 + half * 2 + column % 2];
      for (int k = 0; k < kDepth; ++k) sum += rows[half][k] * element_of<T>(b, column, k, where);
    }
  }
}
template void multiply_rows<Bf16>(float*, int, std::uint64_t, std::uint64_t, const Where&);
template void multiply_rows<F16>(float*, int, std::uint64_t, std::uint64_t, const Where&);

cudaError_t make_tensor_map(DType type, const void* data, std::int64_t rows, std::int64_t columns,
                            std::int64_t stride, int box_rows, TensorMap& map) {
  if (type == DType::kF32) return cudaErrorNotSupported;
  if (!aligned_16(data) || stride % 8 != 0 || box_rows < 1 || box_rows > 256) {
    return cudaErrorInvalidValue;
  }
  map = {static_cast<const char*>(data), rows, columns, 2 * stride, box_rows};
  return cudaSuccess;
}

}  // namespace servelab::kernels::cuda
