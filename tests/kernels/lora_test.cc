#include <algorithm>
#include <deque>

#include "tests/kernels/support.h"

namespace servelab::kernels {
namespace {

constexpr LoraKind kKinds[] = {LoraKind::kSgmv, LoraKind::kBgmv, LoraKind::kMbgmv,
                               LoraKind::kEinsum};

// A pair in a slot of `width` ranks, zeros past its own.
struct Adapter {
  Adapter(DType type, int in, int out, int rank, int width, Random& random)
      : a_buffer(packed_bytes(type, width, in)), b_buffer(packed_bytes(type, out, width)) {
    std::vector<float> a(static_cast<std::size_t>(width * in));
    std::vector<float> b(static_cast<std::size_t>(out * width));
    for (int i = 0; i < rank * in; ++i) a[static_cast<std::size_t>(i)] = random.real();
    for (int i = 0; i < out * width; ++i) {
      if (i % width < rank) b[static_cast<std::size_t>(i)] = random.real();
    }
    pack_panels(DType::kF32, a.data(), in, width, in, type, a_buffer.data(), 0, panels_of(width));
    pack_panels(DType::kF32, b.data(), width, out, width, type, b_buffer.data(), 0, panels_of(out));
    pair = {{type, width, in, a_buffer.data()}, {type, out, width, b_buffer.data()}, rank, 0.7f};
  }
  Guarded a_buffer;
  Guarded b_buffer;
  LoraPair pair;
};

struct Case {
  Case(DType type, int width, std::vector<int> ranks, Random& random)
      : in(random.whole(1, 150)),
        out(random.whole(1, 100)),
        ldx(in + 2),
        ldy(out + 3),
        width(width),
        x(0) {
    for (const int rank : ranks) adapters.emplace_back(type, in, out, rank, width, random);
    for (std::size_t i = 0; i < ranks.size() + 2; ++i) {
      if (random.whole(0, 3) == 0) m += random.whole(1, 3);  // rows left out
      const int rows = random.whole(0, 2) == 0 ? 0 : random.whole(1, 12);
      const auto which = static_cast<std::size_t>(random.whole(0, static_cast<int>(ranks.size())));
      segments.push_back({m, rows, which == ranks.size() ? nullptr : &adapters[which].pair});
      m += rows;
    }
    m += 1;
    x = Guarded(static_cast<std::size_t>(m * ldx) * bytes_of(type));
    fill(x, type, m, in, ldx, random);
    y = random.reals(static_cast<std::size_t>(m * ldy));
  }

  // y after the whole batch, shrunk in `parts` shares and expanded in two halves each way.
  std::vector<float> run(const Ops& ops, LoraKind kind, int parts) {
    const std::int64_t ldt = shrink_stride(width) + 4;
    Guarded t(static_cast<std::size_t>(m * ldt) * 4);
    Guarded scratch(static_cast<std::size_t>(m * shrink_stride(width)) * 4);
    Guarded result(y.size() * 4);
    std::copy(y.begin(), y.end(), result.floats());
    const LoraBatch batch{kind, segments.data(), static_cast<int>(segments.size()), m, width};
    for (int part = 0; part < parts; ++part) {
      lora_shrink(ops, batch, x.data(), ldx, t.floats(), ldt, scratch.floats(), part, parts);
    }
    const int middle = panels_of(out) / 2 * kPanelColumns;
    for (const auto& [row_begin, row_end] : {std::pair{0, m / 2}, {m / 2, m}}) {
      for (const auto& [begin, end] : {std::pair{0, middle}, {middle, out}}) {
        lora_expand(ops, batch, t.floats(), ldt, result.floats(), ldy, row_begin, row_end, begin,
                    end);
      }
    }
    EXPECT_TRUE(t.intact());
    EXPECT_TRUE(scratch.intact());
    EXPECT_TRUE(result.intact());
    return {result.floats(), result.floats() + y.size()};
  }

  int m = 0;
  int in;
  int out;
  std::int64_t ldx;
  std::int64_t ldy;
  int width;
  std::deque<Adapter> adapters;
  std::vector<LoraRows> segments;
  Guarded x;
  std::vector<float> y;
};

// y += scale * B (A x), by the definition, in double.
std::vector<float> by_definition(Case& c, DType type) {
  std::vector<float> y = c.y;
  for (const LoraRows& segment : c.segments) {
    if (segment.pair == nullptr) continue;
    const LoraPair& pair = *segment.pair;
    for (int row = segment.row; row < segment.row + segment.rows; ++row) {
      std::vector<double> t(static_cast<std::size_t>(pair.rank));
      for (int r = 0; r < pair.rank; ++r) {
        double sum = 0;
        for (int i = 0; i < c.in; ++i) {
          sum += double{ref::load(type, c.x.data(), row * c.ldx + i)} * ref::at(pair.a, r, i);
        }
        t[static_cast<std::size_t>(r)] = sum;
      }
      for (int j = 0; j < c.out; ++j) {
        double sum = 0;
        for (int r = 0; r < pair.rank; ++r) {
          sum += t[static_cast<std::size_t>(r)] * ref::at(pair.b, j, r);
        }
        y[static_cast<std::size_t>(row * c.ldy + j)] += static_cast<float>(pair.scale * sum);
      }
    }
  }
  return y;
}

class LoraTest : public KernelTest {
 protected:
  // Ranks of one batch, and the width of its slots.
  static std::pair<std::vector<int>, int> ranks(Random& random) {
    const int largest =
        std::vector{1, 2, 5, 8, 16, 33, 64, 128}[static_cast<std::size_t>(random.whole(0, 7))];
    std::vector<int> result{largest};
    for (int i = random.whole(0, 4); i > 0; --i) result.push_back(random.whole(1, largest));
    return {result, largest};
  }
};
INSTANTIATE_TEST_SUITE_P(All, LoraTest, every_isa_and_type(), parameter_name);

TEST_P(LoraTest, EveryKindMatchesTheDefinition) {
  Random random(13);
  // bf16: t is rounded between the halves.
  const float tolerance = type() == DType::kBf16 ? 0.02f : 1e-5f;
  for (int trial = 0; trial < 12; ++trial) {
    const auto [list, width] = ranks(random);
    Case c(type(), width, list, random);
    const std::vector<float> expected = by_definition(c, type());
    const float size = std::sqrt(static_cast<float>(c.in * width)) * tolerance + 1e-5f;
    for (const LoraKind kind : kKinds) {
      const std::vector<float> got = c.run(ops(), kind, random.whole(1, 4));
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], expected[i], size) << "kind " << static_cast<int>(kind);
      }
    }
  }
}

TEST_P(LoraTest, KindsSharesAndRowsAloneAgreeBitForBit) {
  Random random(14);
  for (int trial = 0; trial < 12; ++trial) {
    const auto [list, width] = ranks(random);
    Case c(type(), width, list, random);
    const std::vector<float> expected = c.run(ops(), LoraKind::kSgmv, 1);
    for (const LoraKind kind : kKinds) {
      for (const int parts : {1, 2, 5}) {
        const std::vector<float> got = c.run(ops(), kind, parts);
        ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0)
            << "kind " << static_cast<int>(kind) << " parts " << parts;
      }
    }
    const std::vector<LoraRows> all = c.segments;
    for (const LoraRows& segment : all) {
      for (int row = segment.row; row < segment.row + segment.rows; ++row) {
        c.segments = {{row, 1, segment.pair}};
        const std::vector<float> got = c.run(ops(), LoraKind::kSgmv, 1);
        ASSERT_EQ(std::memcmp(got.data() + row * c.ldy, expected.data() + row * c.ldy,
                              static_cast<std::size_t>(c.out) * 4),
                  0);
      }
    }
  }
}

// A batch of one rank must not read panels of A, or ranks of B, past it: they may be anything.
TEST_P(LoraTest, RanksPastTheSegmentsOwnAreNotRead) {
  Random random(15);
  const int in = 40;
  const int out = 50;
  const int width = 48;
  Adapter adapter(type(), in, out, width, width, random);
  adapter.pair.rank = 16;
  Guarded x(in * bytes_of(type()));
  fill(x, type(), 1, in, in, random);
  std::vector<float> t(16);
  std::vector<float> y(static_cast<std::size_t>(out));
  const LoraRows segment{0, 1, &adapter.pair};
  ops().lora_shrink(LoraKind::kSgmv, segment, 16, x.data(), in, t.data(), 16);
  ops().lora_expand(LoraKind::kMbgmv, segment, 16, t.data(), 16, y.data(), out, 0, out);
  for (std::size_t j = 0; j < y.size(); ++j) {
    double sum = 0;
    for (int r = 0; r < 16; ++r) {
      sum += double{t[static_cast<std::size_t>(r)]} *
             ref::at(adapter.pair.b, static_cast<int>(j), r) * adapter.pair.scale;
    }
    ASSERT_NEAR(y[j], sum, type() == DType::kBf16 ? 0.2 : 1e-4);
  }
}

TEST_P(LoraTest, MergeMatchesTheReferenceInAnyRange) {
  Random random(16);
  for (const int rank : {1, 3, 16, 70}) {
    const int in = random.whole(1, 150);
    const int out = random.whole(1, 60);
    Adapter adapter(type(), in, out, rank, rank + random.whole(0, 5), random);
    const auto size = static_cast<std::size_t>(in * out);
    const std::vector<float> base = random.reals(size);
    std::vector<float> expected(size);
    ref::lora_merge(adapter.pair, base.data(), expected.data(), 0, out);
    Guarded got(size * 4);
    std::copy(base.begin(), base.end(), got.floats());
    ops().lora_merge(adapter.pair, got.floats(), got.floats(), 0, out);  // in place
    EXPECT_TRUE(got.intact());
    for (std::size_t i = 0; i < size; ++i) {
      ASSERT_TRUE(near(got.floats()[i], expected[i], DType::kF32, rank, 2));
    }
    std::vector<float> pieces(size);
    for (int row = 0; row < out; ++row) {
      ops().lora_merge(adapter.pair, base.data() + row * in, pieces.data() + row * in, row,
                       row + 1);
    }
    EXPECT_EQ(std::memcmp(pieces.data(), got.floats(), size * 4), 0);
  }
}

}  // namespace
}  // namespace servelab::kernels
