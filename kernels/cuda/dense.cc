#include "kernels/cuda/dense.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/cuda/dense_preferences.h"

namespace servelab::kernels::cuda {
namespace {

cudaError_t error_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return cudaSuccess;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return cudaErrorNotSupported;
    case CUBLAS_STATUS_INVALID_VALUE:
      return cudaErrorInvalidValue;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return cudaErrorMemoryAllocation;
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return cudaErrorLaunchFailure;
    default:
      return cudaErrorUnknown;
  }
}

cudaDataType_t data_type(DType type) {
  return type == DType::kBf16 ? CUDA_R_16BF : type == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// Rows that share an algorithm.
int grouped(int m) {
  if (m <= 64) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(m)));
  const int step = m <= 512 ? 64 : 256;
  return (m + step - 1) / step * step;
}

// The largest power of two up to 256 that divides an address: what heuristics may rely on.
std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

struct Product {
  DType type;
  const void* x;
  std::int64_t ldx;
  const void* w;
  int m;
  int n;
  int k;
  DType y_type;
  void* y;
  std::int64_t ldy;
  bool add;
  std::int32_t multiprocessors;  // 0: all of the device's
};

using Key = std::tuple<DType, std::int64_t, int, int, int, DType, std::int64_t, bool, std::int32_t,
                       std::uint32_t, std::uint32_t, std::uint32_t>;

Key key_of(const Product& p, int m) {
  return {p.type,
          p.ldx,
          m,
          p.n,
          p.k,
          p.y_type,
          p.ldy,
          p.add,
          p.multiprocessors,
          alignment_of(p.w),
          alignment_of(p.x),
          alignment_of(p.y)};
}

// cuBLASLt is column-major: y^T[n, m] = (W^T)^T[n, k] x^T[k, m]. Row-major W[n, k] is column-major
// [k, n], to be transposed; x and y are what they should be.
struct Layouts {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t w;
  cublasLtMatrixLayoutOpaque_t x;
  cublasLtMatrixLayoutOpaque_t y;

  cublasStatus_t init(const Product& p) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t status = cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                              sizeof(transposed));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                                              &p.multiprocessors, sizeof(p.multiprocessors));
    }
    const auto layout = [&](cublasLtMatrixLayoutOpaque_t* to, DType type, int rows, int columns,
                            std::int64_t ld) {
      if (status != CUBLAS_STATUS_SUCCESS) return;
      status = cublasLtMatrixLayoutInit(to, data_type(type), static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(columns), ld);
    };
    layout(&w, p.type, p.k, p.n, p.k);
    layout(&x, p.type, p.k, p.m, p.ldx);
    layout(&y, p.y_type, p.n, p.m, p.ldy);
    return status;
  }
};

// Time on the device, between two points of a stream.
class Stopwatch {
 public:
  Stopwatch() {
    if (cudaEventCreate(&begin_) != cudaSuccess) begin_ = nullptr;
    if (cudaEventCreate(&end_) != cudaSuccess) end_ = nullptr;
  }
  ~Stopwatch() {
    if (begin_ != nullptr) static_cast<void>(cudaEventDestroy(begin_));
    if (end_ != nullptr) static_cast<void>(cudaEventDestroy(end_));
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Milliseconds of what `run` submits; infinity when something fails.
  template <class Run>
  float time(cudaStream_t stream, const Run& run) {
    float ms = 0;
    const bool fine =
        begin_ != nullptr && end_ != nullptr && cudaEventRecord(begin_, stream) == cudaSuccess &&
        run() == CUBLAS_STATUS_SUCCESS && cudaEventRecord(end_, stream) == cudaSuccess &&
        cudaEventSynchronize(end_) == cudaSuccess &&
        cudaEventElapsedTime(&ms, begin_, end_) == cudaSuccess;
    return fine ? ms : std::numeric_limits<float>::infinity();
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

class LtDense final : public Dense {
 public:
  LtDense(cublasLtHandle_t handle, void* workspace, std::size_t workspace_bytes, DenseChoice choice)
      : handle_(handle), workspace_(workspace), bytes_(workspace_bytes), choice_(choice) {}
  ~LtDense() override { static_cast<void>(cublasLtDestroy(handle_)); }

  cudaError_t multiply(DType type, const void* x, std::int64_t ldx, const void* w, int m, int n,
                       int k, DType y_type, void* y, std::int64_t ldy, bool add,
                       cudaStream_t stream) override {
    if (type == DType::kF32 || (y_type != type && y_type != DType::kF32)) {
      return cudaErrorNotSupported;
    }
    if (m == 0 || n == 0) return cudaSuccess;
    const Product product{type, x, ldx, w, m, n, k, y_type, y, ldy, add, multiprocessors_};
    Layouts layouts;
    cublasStatus_t status = layouts.init(product);
    if (status != CUBLAS_STATUS_SUCCESS) return error_of(status);
    const Key key = key_of(product, choice_ == DenseChoice::kTimed ? grouped(m) : m);
    if (const auto found = algorithms_.find(key); found != algorithms_.end()) {
      status = run(layouts, product, found->second, y, stream);
      // Of the same group of rows, but not of this number.
      const bool unfit =
          status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
      if (!unfit) return error_of(status);
    }
    cublasLtMatmulAlgo_t algorithm;
    status = choose(layouts, product, key, stream, &algorithm);
    if (status != CUBLAS_STATUS_SUCCESS) return error_of(status);
    return error_of(run(layouts, product, algorithm, y, stream));
  }

  void tune_for(int multiprocessors) override { multiprocessors_ = multiprocessors; }

 private:
  static constexpr int kCandidates = 8;
  static constexpr int kRepeats = 3;
  using Candidates = std::vector<cublasLtMatmulHeuristicResult_t>;

  cublasStatus_t run(Layouts& layouts, const Product& p, const cublasLtMatmulAlgo_t& algorithm,
                     void* result, cudaStream_t stream) {
    const float one = 1;
    const float beta = p.add ? 1.0f : 0.0f;
    return cublasLtMatmul(handle_, &layouts.operation, &one, p.w, &layouts.w, p.x, &layouts.x,
                          &beta, p.y, &layouts.y, result, &layouts.y, &algorithm, workspace_,
                          bytes_, stream);
  }

  cublasStatus_t candidates(Layouts& layouts, const Product& p, Candidates* found) {
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasStatus_t status = make_preferences(
        bytes_, {alignment_of(p.w), alignment_of(p.x), alignment_of(p.y)}, &preference);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
    int count = 0;
    status = cublasLtMatmulAlgoGetHeuristic(handle_, &layouts.operation, &layouts.w, &layouts.x,
                                            &layouts.y, &layouts.y, &preference, kCandidates,
                                            results.data(), &count);
    for (int i = 0; i < count; ++i) {
      const auto& result = results[static_cast<std::size_t>(i)];
      if (result.state == CUBLAS_STATUS_SUCCESS) found->push_back(result);
    }
    if (status == CUBLAS_STATUS_SUCCESS && found->empty()) return CUBLAS_STATUS_NOT_SUPPORTED;
    return status;
  }

  cublasStatus_t choose(Layouts& layouts, const Product& p, const Key& key, cudaStream_t stream,
                        cublasLtMatmulAlgo_t* chosen) {
    Candidates found;
    const cublasStatus_t status = candidates(layouts, p, &found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    *chosen = found.front().algo;
    if (choice_ == DenseChoice::kTimed) {
      cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
      // A choice that could not be measured is not kept.
      if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess ||
          capture != cudaStreamCaptureStatusNone || !fastest(layouts, p, found, stream, chosen)) {
        return CUBLAS_STATUS_SUCCESS;
      }
    }
    algorithms_[key] = *chosen;
    return CUBLAS_STATUS_SUCCESS;
  }

  // False when nothing could be measured.
  bool fastest(Layouts& layouts, const Product& p, const Candidates& found, cudaStream_t stream,
               cublasLtMatmulAlgo_t* chosen) {
    // y must still be what it was if it is to be added to.
    void* result = p.y;
    const std::size_t bytes =
        static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.ldy) * bytes_of(p.y_type);
    if (p.add && cudaMalloc(&result, bytes) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    Stopwatch watch;
    float best = std::numeric_limits<float>::infinity();
    for (const auto& candidate : found) {
      float ms = std::numeric_limits<float>::infinity();
      for (int i = 0; i < kRepeats + 1; ++i) {
        // Weights come from memory in a model, so they leave the cache here.
        if (cudaMemsetAsync(workspace_, 0, bytes_, stream) != cudaSuccess) break;
        const float once =
            watch.time(stream, [&] { return run(layouts, p, candidate.algo, result, stream); });
        if (i > 0) ms = std::min(ms, once);  // the first one loads code
      }
      if (ms >= best) continue;
      best = ms;
      *chosen = candidate.algo;
    }
    if (p.add) static_cast<void>(cudaFree(result));
    return best < std::numeric_limits<float>::infinity();
  }

  cublasLtHandle_t handle_;
  void* workspace_;
  std::size_t bytes_;
  DenseChoice choice_;
  std::int32_t multiprocessors_ = 0;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace

cublasStatus_t make_preferences(std::size_t workspace_bytes, const DenseAlignment& alignment,
                                cublasLtMatmulPreferenceOpaque_t* preferences) {
  cublasStatus_t status = cublasLtMatmulPreferenceInit(preferences);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    if (status != CUBLAS_STATUS_SUCCESS) return;
    status = cublasLtMatmulPreferenceSetAttribute(preferences, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductionSchemes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment.w);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment.x);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment.y);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment.y);
  return status;
}

std::unique_ptr<Dense> make_dense(void* workspace, std::size_t workspace_bytes,
                                  DenseChoice choice) {
  cublasLtHandle_t handle = nullptr;
  if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) return nullptr;
  return std::make_unique<LtDense>(handle, workspace, workspace_bytes, choice);
}

}  // namespace servelab::kernels::cuda
