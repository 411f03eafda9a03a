// Sharing a batch's LoRA work between threads.
#include "kernels/lora.h"

#include <algorithm>
#include <vector>

#include "kernels/ops.h"

namespace servelab::kernels {
namespace {

// Rows that one piece of a segment takes: enough to reuse the weights, few enough to share a single
// long segment between threads.
constexpr int kPieceRows = 32;
constexpr std::size_t kLineBytes = 64;

// A piece's cost in rows: a panel has to come from memory, which takes as long as the arithmetic of
// about this many rows.
constexpr int kPanelCost = 12;

// Lines of the next adapter's weights to fetch while one is computed: as many as it takes for a
// stream from memory to get going.
constexpr int kFetchLines = 48;

void fetch_start(const Panels& w, int panel) {
  const char* at =
      static_cast<const char*>(w.data) + static_cast<std::size_t>(panel) * w.panel_bytes();
  const auto left = static_cast<std::size_t>(panels_of(w.n) - panel) * w.panel_bytes() / kLineBytes;
  for (std::size_t line = 0; line < left && line < kFetchLines; ++line) {
    __builtin_prefetch(at + line * kLineBytes);
  }
}

// Panels of A that shrink reads for a segment.
int panels_to_read(const LoraBatch& batch, const LoraPair& pair) {
  return panels_of(traits(batch.kind).padded ? std::min(batch.width, pair.a.n) : pair.rank);
}

// Shrinks `rows` with one panel of A into t's columns of that panel.
void shrink_panel(const Ops& ops, LoraKind kind, const LoraPair& pair, int panel, int row, int rows,
                  const void* x, std::int64_t ldx, float* t, std::int64_t ldt) {
  LoraPair part = pair;
  part.a.data = static_cast<const char*>(pair.a.data) +
                static_cast<std::size_t>(panel) * pair.a.panel_bytes();
  part.a.n = std::min(kPanelColumns, pair.a.n - panel * kPanelColumns);
  part.rank = part.a.n;
  const LoraRows segment{row, rows, &part};
  ops.lora_shrink(kind, segment, part.a.n, x, ldx, t + panel * kPanelColumns, ldt);
}

// Walks pieces in one order that all threads share, and claims those that start within this
// thread's stretch of the whole cost.
class Share {
 public:
  Share(std::int64_t total, int part, int parts)
      : begin_(total * part / parts), end_(total * (part + 1) / parts) {}

  bool takes(std::int64_t cost) {
    const std::int64_t at = at_;
    at_ += cost;
    return at >= begin_ && at < end_;
  }

 private:
  std::int64_t begin_;
  std::int64_t end_;
  std::int64_t at_ = 0;
};

// Calls visit(segment, panel, first row, rows) for every piece, in order of the weights in memory.
template <class Visit>
void for_each_piece(const LoraBatch& batch, const LoraRows& segment, int piece_rows, Visit visit) {
  const int panels = panels_to_read(batch, *segment.pair);
  for (int panel = 0; panel < panels; ++panel) {
    for (int row = 0; row < segment.rows; row += piece_rows) {
      visit(segment, panel, segment.row + row, std::min(piece_rows, segment.rows - row));
    }
  }
}

// The segments to compute: those with an adapter. For kEinsum: every distinct pair over all rows.
std::vector<LoraRows> segments_to_compute(const LoraBatch& batch) {
  std::vector<LoraRows> result;
  for (int i = 0; i < batch.count; ++i) {
    const LoraRows& segment = batch.segments[i];
    if (segment.pair == nullptr) continue;
    if (!traits(batch.kind).all_pairs) {
      if (segment.rows > 0) result.push_back(segment);
      continue;
    }
    const bool known = std::any_of(result.begin(), result.end(),
                                   [&](const LoraRows& r) { return r.pair == segment.pair; });
    if (!known) result.push_back({0, batch.rows, segment.pair});
  }
  return result;
}

// Copies panel columns of t from scratch for the rows in [row, row + rows) that belong to `pair`.
void keep_own_rows(const LoraBatch& batch, const LoraPair* pair, int panel, int row, int rows,
                   const float* scratch, std::int64_t stride, float* t, std::int64_t ldt) {
  for (int i = 0; i < batch.count; ++i) {
    const LoraRows& segment = batch.segments[i];
    if (segment.pair != pair) continue;
    const int end = std::min(row + rows, segment.row + segment.rows);
    for (int r = std::max(row, segment.row); r < end; ++r) {
      const float* from = scratch + r * stride + panel * kPanelColumns;
      std::copy(from, from + kPanelColumns, t + r * ldt + panel * kPanelColumns);
    }
  }
}

// Expands the rows of `segment` that lie in [row_begin, row_end).
void expand_rows(const Ops& ops, LoraKind kind, const LoraRows& segment, int width, const float* t,
                 std::int64_t ldt, float* y, std::int64_t ldy, int row_begin, int row_end,
                 int column_begin, int column_end) {
  const int begin = std::max(row_begin, segment.row);
  const int end = std::min(row_end, segment.row + segment.rows);
  if (begin >= end) return;
  ops.lora_expand(kind, {begin, end - begin, segment.pair}, width, t, ldt, y, ldy, column_begin,
                  column_end);
}

}  // namespace

void lora_shrink(const Ops& ops, const LoraBatch& batch, const void* x, std::int64_t ldx, float* t,
                 std::int64_t ldt, float* scratch, int part, int parts) {
  const int piece_rows = traits(batch.kind).by_row ? 1 : kPieceRows;
  const std::vector<LoraRows> segments = segments_to_compute(batch);
  const auto cost = [](int rows) { return std::max(kPanelCost, rows); };
  std::int64_t total = 0;
  for (const LoraRows& segment : segments) {
    for_each_piece(batch, segment, piece_rows,
                   [&](const LoraRows&, int, int, int rows) { total += cost(rows); });
  }
  Share share(total, part, parts);
  const std::int64_t stride = shrink_stride(batch.width);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    for_each_piece(
        batch, segments[i], piece_rows, [&](const LoraRows& s, int panel, int row, int rows) {
          if (!share.takes(cost(rows))) return;
          if (i + 1 < segments.size()) fetch_start(segments[i + 1].pair->a, 0);
          if (traits(batch.kind).all_pairs) {
            shrink_panel(ops, batch.kind, *s.pair, panel, row, rows, x, ldx, scratch, stride);
            keep_own_rows(batch, s.pair, panel, row, rows, scratch, stride, t, ldt);
          } else {
            shrink_panel(ops, batch.kind, *s.pair, panel, row, rows, x, ldx, t, ldt);
          }
        });
  }
}

void lora_expand(const Ops& ops, const LoraBatch& batch, const float* t, std::int64_t ldt, float* y,
                 std::int64_t ldy, int row_begin, int row_end, int column_begin, int column_end) {
  for (int i = 0; i < batch.count; ++i) {
    const LoraRows& segment = batch.segments[i];
    if (segment.pair == nullptr) continue;
    if (i + 1 < batch.count && batch.segments[i + 1].pair != nullptr) {
      fetch_start(batch.segments[i + 1].pair->b, column_begin / kPanelColumns);
    }
    expand_rows(ops, batch.kind, segment, batch.width, t, ldt, y, ldy, row_begin, row_end,
                column_begin, column_end);
  }
  if (!traits(batch.kind).all_pairs || row_begin >= row_end) return;
  // The artifact's other work: every pair over the rows that are not its own, masked away here by
  // leaving the result in a buffer that nobody reads.
  const std::int64_t width = column_end - column_begin / kPanelColumns * kPanelColumns;
  std::vector<float> discarded(static_cast<std::size_t>((row_end - row_begin) * width));
  float* origin = discarded.data() - row_begin * width - column_begin;
  for (const LoraRows& all : segments_to_compute(batch)) {
    int row = row_begin;
    const auto skip_to = [&](int end) {
      const LoraRows others{row, end - row, all.pair};
      expand_rows(ops, batch.kind, others, batch.width, t, ldt, origin, width, row_begin, row_end,
                  column_begin, column_end);
    };
    for (int i = 0; i < batch.count; ++i) {
      const LoraRows& own = batch.segments[i];
      if (own.pair != all.pair) continue;
      skip_to(std::min(own.row, row_end));
      row = std::max(row, own.row + own.rows);
    }
    skip_to(row_end);
  }
}

}  // namespace servelab::kernels
