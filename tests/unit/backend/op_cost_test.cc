#include "engine/backend/cost/op_cost.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/shared_files.h"

namespace servelab {
namespace {

using test::device;
using test::roofline_devices;

TEST(OpCostTest, NeverFasterThanTheDataSheet) {
  for (const std::string& name : roofline_devices()) {
    const HardwareProfile hw = device(name);
    for (const double m : {1, 7, 64, 129, 1000, 8192}) {
      for (const double n : {64, 1024, 11008}) {
        for (const double k : {64, 4096, 65536}) {
          const double us = gemm_us(hw, static_cast<std::int64_t>(m), static_cast<std::int64_t>(n),
                                    static_cast<std::int64_t>(k));
          EXPECT_GE(us, 2 * m * n * k / hw.peak_flops * 1e6) << name;
          EXPECT_GE(us, 2 * (m * k + n * k + m * n) / hw.memory_bytes_per_s * 1e6) << name;
        }
      }
    }
    const DecodeAttention decode(hw, 32, 8, 128);
    const PrefillAttention prefill(hw, 32, 8, 128);
    for (const double requests : {1, 5, 64, 300}) {
      for (const double tokens : {1, 100, 1000, 5000}) {
        const double kv_bytes = requests * tokens * 8 * 4 * 128;
        EXPECT_GE(decode.us(requests, requests * tokens), kv_bytes / hw.memory_bytes_per_s * 1e6);
        const double pairs = requests * tokens * (tokens + 1) / 2;
        const double us = prefill.us(requests, requests * tokens, pairs, requests * tokens);
        EXPECT_GE(us, kv_bytes / hw.memory_bytes_per_s * 1e6) << name;
        EXPECT_GE(us, 4 * 128 * 32 * pairs / hw.peak_flops * 1e6) << name;
      }
    }
  }
}

TEST(OpCostTest, LoraKernelsDifferAsTheirWorkDoes) {
  const HardwareProfile hw = device("a100-80g");
  const LoraShape shape{1, 4096 + 11008, 4096 + 2 * 11008};
  // 64 rows: 32 adapters of rank 8 and 32 of rank 128.
  const LoraLoad mixed{64, 32 * 8 + 32 * 128, 64, 32 * 8 + 32 * 128, 128};
  EXPECT_GT(lora_us(hw, LoraKernel::kBgmv, mixed, shape),
            lora_us(hw, LoraKernel::kMbgmv, mixed, shape));
  // A long prefill of one adapter: gathering kernels fetch its weights again for each row.
  const LoraLoad prefill{4096, 4096 * 64, 1, 64, 64};
  EXPECT_GT(lora_us(hw, LoraKernel::kMbgmv, prefill, shape),
            lora_us(hw, LoraKernel::kSgmv, prefill, shape));
  // einsum multiplies every row with every adapter.
  const LoraLoad few{1024, 1024 * 16, 2, 32, 16};
  const LoraLoad many{1024, 1024 * 16, 64, 1024, 16};
  EXPECT_GT(lora_us(hw, LoraKernel::kEinsum, many, shape),
            4 * lora_us(hw, LoraKernel::kEinsum, few, shape));
  EXPECT_EQ(lora_us(hw, LoraKernel::kSgmv, LoraLoad{}, shape), 0);
}

TEST(OpCostTest, LoraKernelsMatchPublishedMicroBenchmarks) {
  const HardwareProfile hw = device("a100-80g");
  // Punica, SGMV, h1 4096, h2 11008, rank 16, all adapters distinct: 37 us at 1 row, 50 us at 64.
  const LoraShape punica{1, 4096 + 11008, 4096 + 2 * 11008};
  EXPECT_NEAR(lora_us(hw, LoraKernel::kSgmv, {1, 16, 1, 16, 16}, punica), 37, 0.1 * 37);
  EXPECT_NEAR(lora_us(hw, LoraKernel::kSgmv, {64, 1024, 64, 1024, 16}, punica), 50, 0.1 * 50);
  // dLoRA Fig. 5, h 4096, rank 16: 35.3 us at batch 2, 36.9 us at 16.
  const LoraShape dlora{1, 2 * 4096, 3 * 4096};
  EXPECT_NEAR(lora_us(hw, LoraKernel::kEinsum, {2, 32, 2, 32, 16}, dlora), 35.3, 0.05 * 35.3);
  EXPECT_NEAR(lora_us(hw, LoraKernel::kEinsum, {16, 256, 16, 256, 16}, dlora), 36.9, 0.05 * 36.9);
}

TEST(OpCostTest, CopiesCostLatencyPlusBytes) {
  const HardwareProfile hw = device("a100-80g");
  const double bytes = 1e9;
  const double rate = hw.host_link_bytes_per_s * hw.host_link_fraction;
  EXPECT_NEAR(host_copy_us(hw, bytes), hw.host_link_latency_us + bytes / rate * 1e6, 1e-6);
  EXPECT_EQ(host_copy_us(hw, 0), 0);
}

// Two layers of matrices of 1 and 3 MB, from pageable memory at 1 GB/s with 20 us a call: 4 calls
// and 8 MB. Rebuilt, with 100 GB/s of memory and 2 us an operation: the stack of 1 MB is read and
// written at 1 and at 2 MB (2 * 3 MB in 60 us, and 4 us), then three times at 2 MB (12 MB in 120
// us, and 6 us); that of 3 MB takes three times as long; and three releases of 500 us.
TEST(OpCost, CopiesFromPageableMemory) {
  HardwareProfile hw;
  hw.memory_bytes_per_s = 1e11;
  hw.elementwise = {.launch_us = 2, .bandwidth_fraction = 1};
  hw.copies = {.pageable_to_device_bytes_per_s = 1e9,
               .pageable_to_host_bytes_per_s = 5e8,
               .call_us = 20,
               .cache_release_us = 500};
  EXPECT_NEAR(pageable_load_us(hw, 2, {1e6, 3e6}), 4 * 20 + 8000, 1e-6);
  const double stacks = (60 + 4 + 120 + 6) + (180 + 4 + 360 + 6);
  EXPECT_NEAR(rebuild_us(hw, 2, {1e6, 3e6}), 4 * 20 + 8000 + stacks + 1500, 1e-6);
  EXPECT_NEAR(pageable_to_host_us(hw, 1e6), 20 + 2000, 1e-6);
  EXPECT_EQ(pageable_to_host_us(hw, 0), 0);
}

}  // namespace
}  // namespace servelab
