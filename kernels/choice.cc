#include "kernels/choice.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

namespace servelab::kernels {
namespace {

struct Shape {
  int n, k;
};
constexpr Shape kTimed = {256, 1024};
constexpr std::array kTimedRows = {1, 8, 32, 128};
// Libraries cut a long k, or few columns, in other ways.
constexpr Shape kCompared[] = {kTimed, {80, 11008}};
constexpr int kComparedRows[] = {1, 2, 3, 5, 8, 16, 17, 32, 64, 100, 128};
constexpr int kMostRows = 128;
constexpr int kTurns = 4;  // the first prepacks and makes primitives
// Of our kernels' time. A library makes a primitive for every new number of rows that a step has,
// and may keep weights in several layouts, which this does not time.
constexpr double kWorthALibrary = 0.8;

// One candidate's layer, with weights and rows like everybody's.
class Trial {
 public:
  Trial(const KernelChoice& choice, DType type, Shape shape)
      : choice_(choice),
        shape_(shape),
        linear_(make_linear(choice.gemm, ops(choice.isa), type, shape.n, shape.k, 1)) {
    best_.fill(std::numeric_limits<double>::infinity());
    if (linear_ == nullptr) return;
    const auto k = static_cast<std::size_t>(shape.k);
    x_.resize(kMostRows * k * bytes_of(type));
    y_.resize(kMostRows * static_cast<std::size_t>(shape.n));
    std::vector<float> values(static_cast<std::size_t>(std::max(shape.n, kMostRows)) * k);
    std::uint32_t state = 1;
    for (float& value : values) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(state >> 8) * 0x1p-23f - 1;
    }
    linear_->pack(0, DType::kF32, values.data(), shape.k);
    ops(choice.isa).narrow(values.data(), type, x_.data(), std::int64_t{kMostRows} * shape.k);
  }

  bool runs() const { return linear_ != nullptr; }
  const KernelChoice& choice() const { return choice_; }
  const std::vector<float>& multiply(int rows) {
    linear_->run(0, x_.data(), shape_.k, y_.data(), shape_.n, rows, Store::kSet);
    return y_;
  }
  bool keeps_rows_apart() {
    const std::vector<float> whole = multiply(kMostRows);
    return std::all_of(std::begin(kComparedRows), std::end(kComparedRows), [&](int rows) {
      const auto elements = static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape_.n);
      return std::memcmp(multiply(rows).data(), whole.data(), elements * sizeof(float)) == 0;
    });
  }
  void take_turn() {
    using Clock = std::chrono::steady_clock;
    for (std::size_t i = 0; i < kTimedRows.size(); ++i) {
      const auto start = Clock::now();
      multiply(kTimedRows[i]);
      const double time = std::chrono::duration<double>(Clock::now() - start).count();
      best_[i] = std::min(best_[i], time);
    }
  }
  // Geometric mean over the row counts, each at its fastest: what disturbs a turn only ever adds.
  double seconds() const {
    double sum = 0;
    for (const double time : best_) sum += std::log(time);
    return std::exp(sum / static_cast<double>(best_.size()));
  }

 private:
  KernelChoice choice_;
  Shape shape_;
  std::unique_ptr<Linear> linear_;
  std::vector<std::byte> x_;
  std::vector<float> y_;
  std::array<double, kTimedRows.size()> best_{};
};

}  // namespace

std::string text(const KernelChoice& choice) {
  return std::string(name(choice.gemm)) + " " + ops(choice.isa).name;
}

std::optional<KernelChoice> parse_choice(std::string_view wanted) {
  for (const GemmLibrary gemm : kGemmLibraries) {
    for (const Isa isa : kIsas) {
      if (built_with(gemm) && supported(isa) && text({gemm, isa}) == wanted) {
        return KernelChoice{gemm, isa};
      }
    }
  }
  return std::nullopt;
}

std::vector<KernelChoice> kernel_choices(DType type) {
  const Isa best = best_isa();
  std::vector<KernelChoice> choices = {{GemmLibrary::kNative, best}};
  if (type == DType::kBf16) {
    if (best == Isa::kAvx512Bf16Dot) choices.push_back({GemmLibrary::kNative, Isa::kAvx512Bf16});
    if (best == Isa::kAvx512Bf16) choices.push_back({GemmLibrary::kNative, Isa::kAvx512Bf16Dot});
  }
  for (const GemmLibrary gemm : kGemmLibraries) {
    if (gemm == GemmLibrary::kNative) continue;
    if (make_linear(gemm, ops(best), type, 1, 1, 1) != nullptr) choices.push_back({gemm, best});
  }
  return choices;
}

bool keeps_rows_apart(const KernelChoice& choice, DType type) {
  return std::all_of(std::begin(kCompared), std::end(kCompared), [&](Shape shape) {
    Trial trial(choice, type, shape);
    return trial.runs() && trial.keeps_rows_apart();
  });
}

KernelChoice fastest_kernels(DType type) {
  std::vector<Trial> trials;
  for (const KernelChoice& choice : kernel_choices(type)) {
    const bool ours = choice.gemm == GemmLibrary::kNative;
    if (ours || keeps_rows_apart(choice, type)) trials.emplace_back(choice, type, kTimed);
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Trial& trial : trials) trial.take_turn();
  }
  const auto cost = [](const Trial& trial) {
    return trial.choice().gemm == GemmLibrary::kNative ? trial.seconds() * kWorthALibrary
                                                       : trial.seconds();
  };
  return std::min_element(trials.begin(), trials.end(),
                          [&](const Trial& a, const Trial& b) { return cost(a) < cost(b); })
      ->choice();
}

}  // namespace servelab::kernels
