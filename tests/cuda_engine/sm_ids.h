// Where blocks run.
#ifndef SERVELAB_TESTS_CUDA_ENGINE_SM_IDS_H_
#define SERVELAB_TESTS_CUDA_ENGINE_SM_IDS_H_

#include <cuda_runtime_api.h>

namespace servelab::test {

// ids[b] (device memory) = the multiprocessor of block b, each of which stays there long enough for
// the others to need one of their own.
cudaError_t sm_ids(int* ids, int blocks, cudaStream_t stream);

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_CUDA_ENGINE_SM_IDS_H_
