#include "kernels/cpu/linear.h"

#ifdef SERVELAB_HAVE_ONEDNN
#include <omp.h>

#include <algorithm>
#include <functional>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#endif

namespace servelab::kernels {

#ifdef SERVELAB_HAVE_ONEDNN

namespace {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;

// Debian builds oneDNN on OpenMP: it would start a team in every calling thread. A primitive keeps
// the thread count of the moment when it was made, so this guards making and running alike.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

dnnl::engine& cpu_engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// One column range. Used by one thread at a time.
class OneDnnPart {
 public:
  OneDnnPart(DType type, int n, int k)
      : type_(type == DType::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32),
        n_(n),
        k_(k),
        rows_(static_cast<std::size_t>(n) * static_cast<std::size_t>(k) * bytes_of(type)),
        stream_(cpu_engine()) {}

  void* rows() const { return rows_.data(); }
  void forget_packed() { packed_.clear(); }

  // oneDNN's fast kernels want x and y without gaps; so y is computed aside and then copied.
  void run(const void* x, std::int64_t ldx, float* y, std::int64_t ldy, int m, Store store) {
    const OneThread guard;
    const Product& product = product_for(m);
    out_.resize(static_cast<std::size_t>(m * n_));
    dnnl::memory in(product.x, cpu_engine(), const_cast<void*>(dense(x, ldx, m)));
    dnnl::memory out(product.y, cpu_engine(), out_.data());
    product.primitive.execute(
        stream_,
        {{DNNL_ARG_SRC, in}, {DNNL_ARG_WEIGHTS, packed(product.weights)}, {DNNL_ARG_DST, out}});
    stream_.wait();
    for (int row = 0; row < m; ++row) {
      const float* from = out_.data() + row * n_;
      float* to = y + row * ldy;
      if (store == Store::kSet) {
        std::copy(from, from + n_, to);
      } else {
        std::transform(from, from + n_, to, to, std::plus<>());
      }
    }
  }

 private:
  struct Product {
    dnnl::inner_product_forward primitive;
    Desc x, y;
    Desc weights;  // the layout that it wants
  };

  const Product& product_for(int m) {
    const auto known = products_.find(m);
    if (known != products_.end()) return known->second;
    using dnnl::memory;
    const Desc x(Dims{m, k_}, type_, memory::format_tag::ab);
    const Desc y(Dims{m, n_}, memory::data_type::f32, memory::format_tag::ab);
    const Desc any(Dims{n_, k_}, type_, memory::format_tag::any);
    const dnnl::inner_product_forward::primitive_desc wanted(
        {dnnl::prop_kind::forward_inference, x, any, y}, cpu_engine());
    Product product{dnnl::inner_product_forward(wanted), x, y, wanted.weights_desc()};
    return products_.emplace(m, std::move(product)).first->second;
  }

  const void* dense(const void* x, std::int64_t ldx, int m) {
    if (ldx == k_ || m == 1) return x;
    const std::size_t element = dnnl::memory::data_type_size(type_);
    const std::size_t row_bytes = static_cast<std::size_t>(k_) * element;
    in_.resize(static_cast<std::size_t>(m) * row_bytes);
    for (int row = 0; row < m; ++row) {
      const auto* from =
          static_cast<const char*>(x) + row * ldx * static_cast<std::int64_t>(element);
      std::copy(from, from + row_bytes, in_.data() + static_cast<std::size_t>(row) * row_bytes);
    }
    return in_.data();
  }

  // The weights in a layout; most numbers of rows want the same.
  dnnl::memory& packed(const Desc& layout) {
    for (dnnl::memory& memory : packed_) {
      if (memory.get_desc() == layout) return memory;
    }
    const Desc row_major(Dims{n_, k_}, type_, dnnl::memory::format_tag::ab);
    dnnl::memory source(row_major, cpu_engine(), rows());
    packed_.emplace_back(layout, cpu_engine());
    dnnl::reorder(source, packed_.back()).execute(stream_, source, packed_.back());
    stream_.wait();
    return packed_.back();
  }

  dnnl::memory::data_type type_;
  std::int64_t n_;
  std::int64_t k_;
  WeightBuffer rows_;  // W's rows of this part, from which every layout is packed
  dnnl::stream stream_;
  std::map<int, Product> products_;  // by the number of rows
  std::vector<dnnl::memory> packed_;
  std::vector<char> in_;
  std::vector<float> out_;
};

class OneDnnLinear : public Linear {
 public:
  OneDnnLinear(DType type, int n, int k, int parts) : Linear(n, k, parts), type_(type) {
    for (int part = 0; part < parts; ++part) {
      parts_.emplace_back(type, column_end(part) - column_begin(part), k);
    }
  }

  void run(int part, const void* x, std::int64_t ldx, float* y, std::int64_t ldy, int m,
           Store store) override {
    if (m <= 0 || columns(part) <= 0) return;
    this->part(part).run(x, ldx, y + column_begin(part), ldy, m, store);
  }

  void pack(int part, DType source_type, const void* source, std::int64_t ld) override {
    const Ops& convert = ops(best_isa());
    const auto from_bytes = static_cast<std::int64_t>(bytes_of(source_type));
    std::vector<float> row(static_cast<std::size_t>(k()));
    for (int j = 0; j < columns(part); ++j) {
      const auto* from =
          static_cast<const char*>(source) + (column_begin(part) + j) * ld * from_bytes;
      convert.widen(source_type, from, row.data(), k());
      convert.narrow(row.data(), type_, row_of(part, j), k());
    }
    this->part(part).forget_packed();
  }

  void unpack(int part, float* out, std::int64_t ld) const override {
    for (int j = 0; j < columns(part); ++j) {
      ops(best_isa()).widen(type_, row_of(part, j), out + j * ld, k());
    }
  }

 private:
  int columns(int part) const { return column_end(part) - column_begin(part); }
  OneDnnPart& part(int i) { return parts_[static_cast<std::size_t>(i)]; }
  void* row_of(int part, int j) const {
    const auto row = static_cast<std::size_t>(j) * static_cast<std::size_t>(k()) * bytes_of(type_);
    return static_cast<char*>(parts_[static_cast<std::size_t>(part)].rows()) + row;
  }

  DType type_;
  std::vector<OneDnnPart> parts_;
};

}  // namespace

bool built_with_onednn() { return true; }

std::unique_ptr<Linear> make_onednn_linear(DType type, int n, int k, int parts) {
  if (type == DType::kF16) return nullptr;
  if (type == DType::kBf16 && !supported(Isa::kAvx512Bf16)) return nullptr;
  return std::make_unique<OneDnnLinear>(type, n, k, parts);
}

#else

bool built_with_onednn() { return false; }

std::unique_ptr<Linear> make_onednn_linear(DType, int, int, int) { return nullptr; }

#endif

}  // namespace servelab::kernels
