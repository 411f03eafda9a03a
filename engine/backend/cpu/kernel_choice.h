// Which kernels compute a run's linear layers: one decision for all shapes and any number of rows,
// made by measuring and then kept in a file, so that all processes of this build on this machine
// make the same.
#ifndef SERVELAB_BACKEND_CPU_KERNEL_CHOICE_H_
#define SERVELAB_BACKEND_CPU_KERNEL_CHOICE_H_

#include <filesystem>
#include <functional>
#include <string>

#include "kernels/choice.h"

namespace servelab {

// For runtime.gemm ("auto" or a library's name) and layers of `type`. "auto" is native where
// SERVELAB_ISA says which table, else what was measured first: in this process, or by the one that
// wrote <type> in the folder servelab/kernels of $XDG_CACHE_HOME or ~/.cache.
kernels::KernelChoice choose_kernels(const std::string& gemm, kernels::DType type);

// What `file` keeps under `key` (lines of text); else what `measure` returns, which is then kept
// there. A file that cannot be read or written, or that holds anything else, is no error.
kernels::KernelChoice kept_choice(const std::filesystem::path& file, const std::string& key,
                                  const std::function<kernels::KernelChoice()>& measure);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_CPU_KERNEL_CHOICE_H_
