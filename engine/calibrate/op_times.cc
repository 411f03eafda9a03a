#include "engine/calibrate/op_times.h"

#include <fmt/format.h>

#include <istream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <vector>

#include "engine/backend/cost/op_cost.h"
#include "engine/core/check.h"
#include "engine/run/point.h"
#include "engine/spec/library.h"

namespace servelab {
namespace {

using Shape = std::vector<double>;

template <auto kSection>
void set_section(const ConfigNode& constants, HardwareProfile* hw) {
  bind_params(constants, "the constants", &(hw->*kSection));
}

double gemm(const HardwareProfile& hw, const Shape& s) {
  return gemm_us(hw, static_cast<std::int64_t>(s[0]), static_cast<std::int64_t>(s[1]),
                 static_cast<std::int64_t>(s[2]));
}

double prefill(const HardwareProfile& hw, const Shape& s) {
  const double requests = s[0], tokens = s[1], context = s[2];
  const PrefillAttention op(hw, static_cast<int>(s[3]), static_cast<int>(s[4]),
                            static_cast<int>(s[5]));
  return op.us(requests, requests * tokens,
               requests * (tokens * context + tokens * (tokens + 1) / 2),
               requests * (context + tokens));
}

double decode(const HardwareProfile& hw, const Shape& s) {
  const DecodeAttention op(hw, static_cast<int>(s[2]), static_cast<int>(s[3]),
                           static_cast<int>(s[4]));
  return op.us(s[0], s[0] * s[1], KvResidency::kMaybeL2);
}

double all_reduce(const HardwareProfile& hw, const Shape& s) {
  return all_reduce_us(hw, static_cast<int>(s[0]), s[1]);
}

double elementwise(const HardwareProfile& hw, const Shape& s) { return elementwise_us(hw, s[0]); }

struct Op {
  const char* name;
  std::size_t numbers;  // of a shape
  void (*set)(const ConfigNode& constants, HardwareProfile* hw);
  double (*us)(const HardwareProfile& hw, const Shape& shape);
};

constexpr Op kOps[] = {
    {"gemm", 3, set_section<&HardwareProfile::gemm>, gemm},
    {"prefill", 6, set_section<&HardwareProfile::prefill>, prefill},
    {"decode", 5, set_section<&HardwareProfile::decode>, decode},
    {"all_reduce", 2, set_section<&HardwareProfile::all_reduce>, all_reduce},
    {"elementwise", 1, set_section<&HardwareProfile::elementwise>, elementwise},
};

const Op& find_op(const std::string& name) {
  std::vector<std::string> known;
  for (const Op& op : kOps) {
    if (op.name == name) return op;
    known.emplace_back(op.name);
  }
  throw SpecError("unknown operator '" + name + "'; " + suggest(name, known));
}

std::vector<Shape> read_shapes(const Op& op, std::istream& in) {
  std::vector<Shape> shapes;
  for (std::string line; std::getline(in, line) && !line.empty();) {
    Shape shape;
    std::istringstream cells(line);
    char comma = ',';
    for (double value = 0; comma == ',' && cells >> value;) {
      shape.push_back(value);
      comma = '\0';
      cells >> comma;
    }
    if (shape.size() != op.numbers || comma != '\0') {
      throw SpecError(
          fmt::format("shape {}: '{}' is not {} numbers with commas between, as {} "
                      "needs them",
                      shapes.size() + 1, line, op.numbers, op.name));
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

std::string answer(const Op& op, const std::vector<Shape>& shapes, const std::string& constants,
                   HardwareProfile* hw) {
  try {
    op.set(parse_yaml(constants, "the constants"), hw);
  } catch (const SpecError& bad) {
    return std::string("refused: ") + bad.what();
  }
  std::string text;
  for (const Shape& shape : shapes) {
    fmt::format_to(std::back_inserter(text), "{} ", op.us(*hw, shape));
  }
  return text;
}

}  // namespace

void answer_op_times(const OpTimesOptions& options, std::istream& in, std::ostream& out) {
  const Op& op = find_op(options.op);
  const Library library(options.experiments);
  HardwareProfile hw =
      load_hardware_profile(library.find("hardware", options.profile, SourceMark{"op-times", 0, 0}),
                            hardware_in(library));
  const std::vector<Shape> shapes = read_shapes(op, in);
  for (std::string line; std::getline(in, line);) {
    out << answer(op, shapes, line, &hw) << '\n' << std::flush;
  }
}

}  // namespace servelab
