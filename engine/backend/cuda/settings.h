// What specs say of the CUDA engine alone; known in programs without it too.
#ifndef SERVELAB_BACKEND_CUDA_SETTINGS_H_
#define SERVELAB_BACKEND_CUDA_SETTINGS_H_

#include "engine/core/params.h"

namespace servelab::cuda {

struct CudaSettings {
  int host_lora_threads = 0;
  void fields(ParamFields& f) {
    f.add("host_lora_threads", &host_lora_threads,
          "on cuda: threads per device that compute LoRA on the host; 0: the processors, shared "
          "out, less one")
        .range(0, 1024);
  }
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_SETTINGS_H_
