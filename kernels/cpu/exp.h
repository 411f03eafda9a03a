// Exponentials of sixteen floats, to about 1e-7 of their value.
#ifndef SERVELAB_KERNELS_CPU_EXP_H_
#define SERVELAB_KERNELS_CPU_EXP_H_

namespace servelab::kernels {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

// 2^x. 2^-126 for all less than that, since subnormal numbers would take a hundred times as long;
// infinity where x > 128; NaN stays NaN.
template <class S>
typename S::Vec exp2(typename S::Vec x) {
  x = S::min(S::set(128), S::max(S::set(-126), x));
  const auto whole = S::round(x);
  const auto rest = S::sub(x, whole);
  // Interpolates 2^rest at the Chebyshev nodes of [-1/2, 1/2]: off by less than 3e-9 of it.
  auto power = S::set(0.0001546144469646172f);
  power = S::fma(power, rest, S::set(0.0013400428177419153f));
  power = S::fma(power, rest, S::set(0.00961805667852609f));
  power = S::fma(power, rest, S::set(0.05550327226670944f));
  power = S::fma(power, rest, S::set(0.24022650922288827f));
  power = S::fma(power, rest, S::set(0.6931472067028321f));
  power = S::fma(power, rest, S::set(1));
  return S::times_power_of_2(power, whole);
}

}  // namespace
}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_EXP_H_
