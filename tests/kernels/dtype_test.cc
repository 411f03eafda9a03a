#include "kernels/dtype.h"

#include "tests/kernels/support.h"

namespace servelab::kernels {
namespace {

TEST(DTypeTest, EveryBf16RoundTrips) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(wide))));
    } else {
      ASSERT_EQ(to_bf16(wide).bits, bits);
    }
  }
}

// What binary16 means, from its definition.
double f16_value(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31u);
  const double fraction = bits & 1023u;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

TEST(DTypeTest, EveryF16RoundTripsAndHasItsValue) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const F16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if ((bits & 0x7fffu) > 0x7c00u) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_TRUE(std::isnan(to_float(to_f16(wide))));
      continue;
    }
    ASSERT_EQ(to_f16(wide).bits, bits);
    if ((bits & 0x7fffu) < 0x7c00u) {
      ASSERT_EQ(wide, f16_value(bits));
    } else {
      ASSERT_TRUE(std::isinf(wide));
    }
  }
}

TEST(DTypeTest, RoundsToTheNearestAndTiesToEven) {
  for (unsigned bits = 0; bits < 0x7bff; ++bits) {  // every pair of neighbouring finite halves
    const auto low = static_cast<float>(f16_value(bits));
    const auto high = static_cast<float>(f16_value(bits + 1));
    const float middle = (low + high) / 2;  // exact
    ASSERT_EQ(to_f16(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(to_f16(std::nextafter(middle, low)).bits, bits);
    ASSERT_EQ(to_f16(std::nextafter(middle, high)).bits, bits + 1);
    ASSERT_EQ(to_f16(-std::nextafter(middle, high)).bits, (bits + 1) | 0x8000u);
  }
  EXPECT_EQ(to_f16(65519.996f).bits, 0x7bffu);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00u);
  for (unsigned bits = 0; bits < 0x7f7f; ++bits) {
    const auto low = std::bit_cast<float>(bits << 16);
    const auto middle = std::bit_cast<float>((bits << 16) + 0x8000u);
    ASSERT_EQ(to_bf16(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(to_bf16(std::nextafter(middle, low)).bits, bits);
    ASSERT_EQ(to_bf16(std::bit_cast<float>((bits << 16) + 0x8001u)).bits, bits + 1);
  }
}

TEST(DTypeTest, NamesAndSizes) {
  EXPECT_STREQ(name(DType::kF32), "f32");
  EXPECT_STREQ(name(DType::kBf16), "bf16");
  EXPECT_STREQ(name(DType::kF16), "f16");
  EXPECT_EQ(bytes_of(DType::kF32), 4u);
  EXPECT_EQ(bytes_of(DType::kF16), 2u);
}

TEST(PanelsTest, PackingRoundTripsFromEveryType) {
  Random random(1);
  for (const DType source_type : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const DType type : {DType::kF32, DType::kBf16}) {
      for (const auto& [n, k] : {std::pair{1, 1}, {16, 2}, {17, 3}, {50, 31}, {64, 64}}) {
        const std::int64_t ld = k + 3;
        Guarded source(static_cast<std::size_t>(n * ld) * bytes_of(source_type));
        fill(source, source_type, n, k, ld, random);
        Guarded packed(packed_bytes(type, n, k));
        const int middle = panels_of(n) / 2;
        pack_panels(source_type, source.data(), ld, n, k, type, packed.data(), 0, middle);
        pack_panels(source_type, source.data(), ld, n, k, type, packed.data(), middle,
                    panels_of(n));
        Guarded out(static_cast<std::size_t>(n * ld) * sizeof(float));
        unpack_panels({type, n, k, packed.data()}, out.floats(), ld, 0, panels_of(n));
        for (int j = 0; j < n; ++j) {
          for (int i = 0; i < k; ++i) {
            const float value = ref::load(source_type, source.data(), j * ld + i);
            const float expected = type == DType::kBf16 ? to_float(to_bf16(value)) : value;
            ASSERT_EQ(out.floats()[j * ld + i], expected);
          }
          ASSERT_TRUE(Guarded::untouched(out.floats()[j * ld + k]));
        }
        EXPECT_TRUE(packed.intact());
        EXPECT_TRUE(out.intact());
      }
    }
  }
}

}  // namespace
}  // namespace servelab::kernels
