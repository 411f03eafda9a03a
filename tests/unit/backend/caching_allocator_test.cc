// PyTorch's caching allocator: segments by hand, and the tensors that they hold.
#include "engine/backend/cost/caching_allocator.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "engine/backend/cost/cost_model.h"

namespace servelab {
namespace {

Bytes reserved(const std::vector<Bytes>& tensors) { return reserved_in_segments(tensors); }

TEST(CachingAllocator, SegmentsAreOfThreeKinds) {
  EXPECT_EQ(reserved({}), 0);
  EXPECT_EQ(reserved({1}), 2 * kMiB);
  EXPECT_EQ(reserved({kMiB}), 2 * kMiB);
  EXPECT_EQ(reserved({kMiB + 1}), 20 * kMiB);
  EXPECT_EQ(reserved({10 * kMiB - 512}), 20 * kMiB);
  EXPECT_EQ(reserved({10 * kMiB}), 10 * kMiB);
  EXPECT_EQ(reserved({10 * kMiB + 1}), 12 * kMiB);
}

TEST(CachingAllocator, WhatIsLeftOfASegmentIsUsed) {
  EXPECT_EQ(reserved(std::vector<Bytes>(4096, 512)), 2 * kMiB);
  EXPECT_EQ(reserved(std::vector<Bytes>(4096, 1)), 2 * kMiB) << "512 B each";
  EXPECT_EQ(reserved(std::vector<Bytes>(5, 4 * kMiB)), 20 * kMiB);
  EXPECT_EQ(reserved(std::vector<Bytes>(6, 4 * kMiB)), 40 * kMiB);
  // Small tensors do not go into what is left of large segments.
  EXPECT_EQ(reserved({4 * kMiB, 512}), 22 * kMiB);
  // Segments of a tensor's own have something left, too.
  EXPECT_EQ(reserved({19 * kMiB - 512, kMiB + 512}), 20 * kMiB);
  EXPECT_EQ(reserved({19 * kMiB - 512, kMiB + 1024}), 40 * kMiB);
}

TEST(CachingAllocator, TakesTheSmallestPieceThatFits) {
  // 12 MiB and 4 MiB less 512 B are left: 3 MiB go into the smaller, so that 10 MiB still fit.
  EXPECT_EQ(reserved({8 * kMiB, 8 * kMiB + 512, 8 * kMiB, 3 * kMiB, 10 * kMiB}), 40 * kMiB);
}

// Of every model, the tensors are the weights and the slots.
TEST(DeviceTensors, AddUpToWeightsAndSlots) {
  const std::vector<std::string> all = {"q", "k", "v", "o", "gate", "up", "down"};
  for (const char* name : {"llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "llama-2-70b"}) {
    const ModelConfig model = load_model_config(
        std::string(SERVELAB_SOURCE_DIR "/experiments/base/model/") + name + ".yaml");
    for (const bool vocabulary : {false, true}) {
      const std::vector<Bytes> tensors = device_tensors(model, 1, 5, 16, all, vocabulary);
      const Bytes head = vocabulary ? 256 * model.hidden * model.bytes_per_weight : 0;
      EXPECT_EQ(std::accumulate(tensors.begin(), tensors.end(), Bytes{0}),
                memory_needs(model, 1, 1, 1).weights + head +
                    5 * reserved_slot_bytes(model, 1, 16, all, vocabulary))
          << name;
    }
  }
}

}  // namespace
}  // namespace servelab
