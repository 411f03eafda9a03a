#include "kernels/panels.h"

#include <algorithm>

namespace servelab::kernels {
namespace {

template <class T>
float load(const T* from) {
  return to_float(*from);
}
template <>
float load(const float* from) {
  return *from;
}

void store(float value, float* to) { *to = value; }
void store(float value, Bf16* to) { *to = to_bf16(value); }

// Elements of one column that lie side by side in a panel.
template <class T>
inline constexpr int kDepth = sizeof(T) == 2 ? 2 : 1;

// Where element (column of the panel, k) lies in a panel.
template <class T>
std::size_t offset(int column, int k) {
  return static_cast<std::size_t>((k / kDepth<T> * kPanelColumns + column) * kDepth<T> +
                                  k % kDepth<T>);
}

template <class From, class To>
void pack(const From* source, std::int64_t ld, int n, int k, To* packed, int panel_begin,
          int panel_end) {
  const std::size_t panel_size = static_cast<std::size_t>(padded_k(k)) * kPanelColumns;
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    To* out = packed + static_cast<std::size_t>(panel) * panel_size;
    std::fill(out, out + panel_size, To{});
    const int columns = std::min(kPanelColumns, n - panel * kPanelColumns);
    for (int column = 0; column < columns; ++column) {
      const From* row = source + (panel * kPanelColumns + column) * ld;
      for (int i = 0; i < k; ++i) store(load(row + i), out + offset<To>(column, i));
    }
  }
}

template <class To>
void pack_from(DType source_type, const void* source, std::int64_t ld, int n, int k, To* packed,
               int panel_begin, int panel_end) {
  switch (source_type) {
    case DType::kF32:
      pack(static_cast<const float*>(source), ld, n, k, packed, panel_begin, panel_end);
      break;
    case DType::kBf16:
      pack(static_cast<const Bf16*>(source), ld, n, k, packed, panel_begin, panel_end);
      break;
    case DType::kF16:
      pack(static_cast<const F16*>(source), ld, n, k, packed, panel_begin, panel_end);
      break;
  }
}

template <class T>
void unpack(const T* data, int n, int k, float* out, std::int64_t ld, int panel_begin,
            int panel_end) {
  const std::size_t panel_size = static_cast<std::size_t>(padded_k(k)) * kPanelColumns;
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    const T* in = data + static_cast<std::size_t>(panel) * panel_size;
    const int columns = std::min(kPanelColumns, n - panel * kPanelColumns);
    for (int column = 0; column < columns; ++column) {
      float* row = out + (panel * kPanelColumns + column) * ld;
      for (int i = 0; i < k; ++i) row[i] = load(in + offset<T>(column, i));
    }
  }
}

}  // namespace

void pack_panels(DType source_type, const void* source, std::int64_t ld, int n, int k, DType type,
                 void* packed, int panel_begin, int panel_end) {
  if (type == DType::kBf16) {
    pack_from(source_type, source, ld, n, k, static_cast<Bf16*>(packed), panel_begin, panel_end);
  } else {
    pack_from(source_type, source, ld, n, k, static_cast<float*>(packed), panel_begin, panel_end);
  }
}

void unpack_panels(const Panels& packed, float* out, std::int64_t ld, int panel_begin,
                   int panel_end) {
  if (packed.type == DType::kBf16) {
    unpack(static_cast<const Bf16*>(packed.data), packed.n, packed.k, out, ld, panel_begin,
           panel_end);
  } else {
    unpack(static_cast<const float*>(packed.data), packed.n, packed.k, out, ld, panel_begin,
           panel_end);
  }
}

}  // namespace servelab::kernels
