// libFuzzer: any bytes are a safetensors file or a SpecError.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/check.h"
#include "engine/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace servelab;
  try {
    const auto tensors = parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
    for (const auto& [name, stored] : tensors) {
      try {
        to_tensor(stored, nullptr, "fuzz", name);
      } catch (const SpecError&) {
      }
    }
  } catch (const SpecError&) {
  }
  return 0;
}
