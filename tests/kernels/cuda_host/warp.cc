// Warp operations that need all lanes' data, by the layouts of the PTX ISA.
#include <array>

#include "tests/kernels/cuda_host/platform_host.h"

namespace servelab::kernels::cuda {
namespace {

struct MatrixLane {
  const std::uint16_t* row;
  std::uint32_t* result;
};

template <bool transposed>
void share_matrices(void* const (&lanes)[32]) {
  const auto at = [&](int matrix, int row, int column) {
    return static_cast<std::uint32_t>(
        static_cast<const MatrixLane*>(lanes[8 * matrix + row])->row[column]);
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int major = lane / 4;
    const int minor = 2 * (lane % 4);
    for (int matrix = 0; matrix < 4; ++matrix) {
      const std::uint32_t low = transposed ? at(matrix, minor, major) : at(matrix, major, minor);
      const std::uint32_t high =
          transposed ? at(matrix, minor + 1, major) : at(matrix, major, minor + 1);
      static_cast<MatrixLane*>(lanes[lane])->result[matrix] = low | high << 16;
    }
  }
}

void load(std::uint32_t (&r)[4], const void* row, const Where& where, const char* name,
          host::WarpAction act) {
  host::require(aligned_16(row), "an unaligned matrix row", where);
  host::require(host::in_shared_memory(row, 16), "a matrix row outside of shared memory", where);
  MatrixLane lane{static_cast<const std::uint16_t*>(row), r};
  host::warp_operation(name, &lane, act, where);
}

struct MultiplyLane {
  float* c;
  const std::uint32_t* a;
  std::array<std::uint32_t, 2> b;
};

template <class T>
void share_product(void* const (&lanes)[32]) {
  float a[16][16];
  float b[16][8];
  for (int i = 0; i < 32; ++i) {
    const auto& lane = *static_cast<const MultiplyLane*>(lanes[i]);
    const int g = i / 4;
    const int t = 2 * (i % 4);
    for (int word = 0; word < 4; ++word) {
      const float2 pair = unpack<T>(lane.a[word]);
      const int row = g + 8 * (word % 2);
      const int column = t + 8 * (word / 2);
      a[row][column] = pair.x;
      a[row][column + 1] = pair.y;
    }
    for (int word = 0; word < 2; ++word) {
      const float2 pair = unpack<T>(lane.b[static_cast<std::size_t>(word)]);
      b[t + 8 * word][g] = pair.x;
      b[t + 8 * word + 1][g] = pair.y;
    }
  }
  for (int i = 0; i < 32; ++i) {
    float* const c = static_cast<const MultiplyLane*>(lanes[i])->c;
    for (int word = 0; word < 4; ++word) {
      const int row = i / 4 + 8 * (word / 2);
      const int column = 2 * (i % 4) + word % 2;
      float sum = c[word];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      c[word] = sum;
    }
  }
}

}  // namespace

unsigned ballot(bool value, const Where& where) {
  struct Lane {
    bool value;
    unsigned result;
  } lane{value, 0};
  host::warp_operation(
      "ballot", &lane,
      [](void* const(&lanes)[32]) {
        unsigned bits = 0;
        for (int i = 0; i < 32; ++i) {
          if (static_cast<const Lane*>(lanes[i])->value) bits |= 1u << i;
        }
        for (void* each : lanes) static_cast<Lane*>(each)->result = bits;
      },
      where);
  return lane.result;
}

void warp_barrier(const Where& where) {
  host::warp_operation(
      "warp_barrier", nullptr, [](void* const(&)[32]) {}, where);
}

void load_matrices(std::uint32_t (&r)[4], const void* row, const Where& where) {
  load(r, row, where, "load_matrices", share_matrices<false>);
}

void load_matrices_transposed(std::uint32_t (&r)[4], const void* row, const Where& where) {
  load(r, row, where, "load_matrices_transposed", share_matrices<true>);
}

template <class T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  const Where& where) {
  MultiplyLane lane{c, a, {b0, b1}};
  host::warp_operation("multiply_add", &lane, share_product<T>, where);
}
template void multiply_add<Bf16>(float (&)[4], const std::uint32_t (&)[4], std::uint32_t,
                                 std::uint32_t, const Where&);
template void multiply_add<F16>(float (&)[4], const std::uint32_t (&)[4], std::uint32_t,
                                std::uint32_t, const Where&);

}  // namespace servelab::kernels::cuda
