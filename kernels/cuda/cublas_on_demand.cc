// cuBLASLt is loaded by its first call: mapping and relocating it takes 0.1 s and 200 MB of every
// program that starts with it, and few of those that have the CUDA engine multiply on a GPU.
#include <cublasLt.h>
#include <dlfcn.h>

namespace {

#define TEXT_OF(x) #x
#define LIBRARY_OF(major) "libcublasLt.so." TEXT_OF(major)

void* symbol(const char* name) {
  static void* const library = dlopen(LIBRARY_OF(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace

// Defines the function that cublasLt.h declares as a call of the library's.
#define FORWARD(name, parameters, ...)                                                  \
  cublasStatus_t name parameters {                                                      \
    static const auto function = reinterpret_cast<decltype(&name)>(symbol(#name));      \
    return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(__VA_ARGS__); \
  }

extern "C" {

FORWARD(cublasLtCreate, (cublasLtHandle_t * handle), handle)
FORWARD(cublasLtDestroy, (cublasLtHandle_t handle), handle)
FORWARD(cublasLtMatmulDescInit_internal,
        (cublasLtMatmulDesc_t operation, size_t size, cublasComputeType_t compute,
         cudaDataType_t scale),
        operation, size, compute, scale)
FORWARD(cublasLtMatmulDescSetAttribute,
        (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
         const void* value, size_t size),
        operation, attribute, value, size)
FORWARD(cublasLtMatrixLayoutInit_internal,
        (cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows,
         uint64_t columns, int64_t ld),
        layout, size, type, rows, columns, ld)
FORWARD(cublasLtMatmulPreferenceInit_internal, (cublasLtMatmulPreference_t preference, size_t size),
        preference, size)
FORWARD(cublasLtMatmulPreferenceSetAttribute,
        (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const void* value, size_t size),
        preference, attribute, value, size)
FORWARD(cublasLtMatmulAlgoGetHeuristic,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
         cublasLtMatmulPreference_t preference, int most, cublasLtMatmulHeuristicResult_t* found,
         int* count),
        handle, operation, a, b, c, d, preference, most, found, count)
FORWARD(cublasLtMatmul,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
         cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
         const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
         cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
         size_t workspace_bytes, cudaStream_t stream),
        handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
        algorithm, workspace, workspace_bytes, stream)

}  // extern "C"
