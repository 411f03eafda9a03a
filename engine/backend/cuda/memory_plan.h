// What the CUDA engine puts into device memory, added up before anything is allocated.
#ifndef SERVELAB_BACKEND_CUDA_MEMORY_PLAN_H_
#define SERVELAB_BACKEND_CUDA_MEMORY_PLAN_H_

#include <cstddef>
#include <string>
#include <vector>

namespace servelab::cuda {

class MemoryPlan {
 public:
  // `setting`: what to lower when there is too little. Parts of one name are added up.
  void add(const std::string& name, std::size_t bytes, const std::string& setting);

  std::size_t total() const;
  // Throws SpecError that lists the parts, what is free, and what to lower, when it does not fit.
  void check(std::size_t free_bytes) const;

 private:
  struct Part {
    std::string name;
    std::size_t bytes = 0;
    std::string setting;
  };
  std::vector<Part> parts_;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_MEMORY_PLAN_H_
