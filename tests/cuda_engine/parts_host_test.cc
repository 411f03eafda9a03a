// The CUDA engine's parts that need no device: the memory plan, stretches of memory, and where the
// rows of a step lie.
#include <gmock/gmock.h>

#include <map>

#include "engine/backend/cuda/memory_plan.h"
#include "engine/backend/cuda/range_allocator.h"
#include "engine/backend/cuda/step_input.h"
#include "tests/cuda_engine/engine_testing.h"
#include "tests/cuda_engine/host_device.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CudaRangeAllocator, AgreesWithAMapOfBytesOverARandomHistory) {
  constexpr std::size_t kSize = 200;
  cuda::RangeAllocator ranges(kSize);
  std::vector<bool> used(kSize, false);
  std::vector<std::pair<std::size_t, std::size_t>> taken;
  RngStream rng(1, "ranges");
  for (int step = 0; step < 4000; ++step) {
    if (rng.below(2) == 0 || taken.empty()) {
      const std::size_t size = 1 + rng.below(30);
      // The lowest stretch of that length, by looking at every byte.
      std::size_t length = 0;
      std::size_t first = kSize;
      for (std::size_t i = 0; i < kSize && first == kSize; ++i) {
        length = used[i] ? 0 : length + 1;
        if (length == size) first = i + 1 - size;
      }
      const auto got = ranges.take(size);
      ASSERT_EQ(got.has_value(), first != kSize);
      if (!got.has_value()) continue;
      ASSERT_EQ(*got, first);
      taken.emplace_back(first, size);
      std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(first), size, true);
    } else {
      const auto i = static_cast<std::ptrdiff_t>(rng.below(taken.size()));
      const auto [offset, size] = taken[static_cast<std::size_t>(i)];
      taken.erase(taken.begin() + i);
      ranges.give(offset, size);
      std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(offset), size, false);
    }
    ASSERT_EQ(ranges.free_bytes(),
              static_cast<std::size_t>(std::count(used.begin(), used.end(), false)));
  }
}

TEST(CudaMemoryPlan, SaysWhatTakesHowMuchAndWhatToLower) {
  cuda::MemoryPlan plan;
  plan.add("weights", std::size_t{900} << 20, "the model's size");
  plan.add("KV cache", std::size_t{3000} << 20, "memory_bytes in the hardware profile");
  plan.add("weights", std::size_t{100} << 20, "the model's size");
  plan.add("nothing", 0, "nothing");
  plan.check(std::size_t{4000} << 20);
  try {
    plan.check((std::size_t{4000} << 20) - 1);
    FAIL() << "it does not fit";
  } catch (const SpecError& error) {
    EXPECT_STREQ(error.what(),
                 "out of device memory: 4000 MiB are planned and 4000 MiB are free: KV cache 3000 "
                 "MiB, weights 1000 MiB; lower memory_bytes in the hardware profile or the model's "
                 "size");
  }
}

TEST(CudaMemoryPlan, APlanThatTheDeviceCannotHoldIsRefusedBeforeAnythingIsAllocated) {
  const ModelConfig model = small_model();
  const auto weights = random_weights(model, 1);
  host_device::set_free_memory(std::size_t{8} << 20);
  try {
    cuda::CudaDevice(model, *weights, small_plan(DType::kBf16));
    FAIL() << "8 MiB are not enough";
  } catch (const SpecError& error) {
    EXPECT_THAT(error.what(), HasSubstr("out of device memory"));
    EXPECT_THAT(error.what(), HasSubstr("8 MiB are free"));
  }
  host_device::set_free_memory(std::size_t{2} << 30);
}

TEST(CudaShapes, ModelsThatTheKernelsDoNotTakeAreRefused) {
  for (const auto& [hidden, head_dim, ffn] :
       {std::array{128, 36, 192}, {128, 64, 196}, {132, 64, 192}}) {
    ModelConfig model = small_model();
    model.hidden = hidden;
    model.head_dim = head_dim;
    model.ffn = ffn;
    EXPECT_THROW(cuda::CudaDevice(model, *random_weights(model, 1), small_plan(DType::kBf16)),
                 SpecError);
  }
}

// --- rows of a step ---

// Adapters as the engine packs them, and the memory that a step's input is written to.
class CudaStepInput : public ::testing::Test {
 protected:
  CudaStepInput()
      : bytes_(cuda::StepInput::bytes(model_, plan_.limits)),
        memory_(bytes_ + 64, std::byte{0x5a}),
        input_(model_, plan_.limits, plan_.type, memory_.data(), memory_.data()) {
    cuda::MemoryPlan memory;
    cuda::AdapterStore::plan(model_, plan_, &memory);
    arena_ = std::make_unique<cuda::Arena>(memory.total());
    store_ = std::make_shared<cuda::AdapterStore>(model_, plan_, arena_.get(), &pinned_);
    for (const int rank : {4, 8, 16, 64}) {
      const auto lora = random_adapter(model_, "a", rank, all_targets(), 1);
      on_device_.push_back(store_->load(*lora, 64));
      on_host_.push_back(std::make_unique<cuda::HostAdapter>(
          std::make_shared<PackedAdapter>(*lora, DType::kBf16, 0, storage_)));
    }
  }

  void add(int context, int tokens, int adapter, LoraSite lora = LoraSite::kDevice) {
    const AdapterId id = adapter < 0 ? kBaseModel : nth(static_cast<std::size_t>(adapter));
    job_.sequences.push_back(sequence(prompt(model_, context + tokens, 1),
                                      static_cast<std::size_t>(context), blocks(7, 20), id, lora));
    adapters_.push_back(adapter < 0 ? nullptr : packed(lora, adapter));
  }
  const DeviceAdapter* packed(LoraSite lora, int adapter) const {
    const auto i = static_cast<std::size_t>(adapter);
    if (lora == LoraSite::kHost) return on_host_[i].get();
    return on_device_[i].get();
  }
  const cuda::StepShape& lay_out(LoraKernel kernel, bool bucketed = false) {
    job_.mode.kernel = kernel;
    return input_.lay_out(job_, adapters_, bucketed);
  }
  int slot(std::size_t adapter) const { return on_device_[adapter]->slot(); }
  static std::vector<int> list(const std::int32_t* data, int count) { return {data, data + count}; }

  const ModelConfig model_ = small_model();
  const DevicePlan plan_ = small_plan(DType::kBf16);
  cuda::PinnedPool pinned_;
  std::unique_ptr<cuda::Arena> arena_;
  std::shared_ptr<cuda::AdapterStore> store_;
  const std::shared_ptr<AdapterStorage> storage_ = std::make_shared<AdapterStorage>();
  std::vector<std::unique_ptr<cuda::CudaAdapter>> on_device_;
  std::vector<std::unique_ptr<cuda::HostAdapter>> on_host_;
  DeviceJob job_;
  std::vector<const DeviceAdapter*> adapters_;  // of its sequences
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  cuda::StepInput input_;
};

TEST_F(CudaStepInput, DecodesBeforePrefillsByAdapterAndTheBaseLast) {
  add(0, 3, 2);
  add(9, 1, -1);
  add(5, 1, 1);
  add(0, 2, -1);
  add(12, 1, 2);
  add(4, 2, 1);
  add(3, 1, 1);
  job_.sequences[3].samples = false;
  const cuda::StepShape& shape = lay_out(LoraKernel::kMbgmv);
  EXPECT_EQ(shape.rows, 11);
  EXPECT_EQ(shape.decodes, 4);
  EXPECT_EQ(shape.prefills, 3);
  // Adapter 2 appeared first, then 1.
  EXPECT_EQ(list(input_.contexts.host, 7), (std::vector{12, 5, 3, 9, 0, 4, 0}));
  EXPECT_EQ(list(input_.slots.host, 11), (std::vector{slot(2), slot(1), slot(1), -1, slot(2),
                                                      slot(2), slot(2), slot(1), slot(1), -1, -1}));
  EXPECT_EQ(list(input_.positions.host, 11), (std::vector{12, 5, 3, 9, 0, 1, 2, 4, 5, 0, 1}));
  EXPECT_EQ(list(input_.prefill_begin.host, 4), (std::vector{0, 3, 5, 7}));
  EXPECT_EQ(list(input_.sample_rows.host, shape.sampled), (std::vector{6, 3, 1, 0, 8, 2}));
  EXPECT_EQ(input_.cache_rows.host[0], (7 + 3) * kBlockTokens);  // position 12 of blocks 7, 8, ...
  EXPECT_EQ(shape.decode_length, 13);
  EXPECT_EQ(shape.prefill_length, 6);
  EXPECT_EQ(shape.prefill_queries, 3);
  ASSERT_EQ(shape.lora_parts, 2);
  EXPECT_EQ(shape.lora[0].row, 0);
  EXPECT_EQ(shape.lora[0].kind, kernels::LoraKind::kMbgmv);
  EXPECT_EQ(shape.lora[0].batch.rows, 3);
  EXPECT_EQ(shape.lora[1].row, 4);
  EXPECT_EQ(shape.lora[1].kind, kernels::LoraKind::kSgmv);
  EXPECT_EQ(shape.lora[1].batch.rows, 5);
  EXPECT_EQ(list(shape.lora[1].batch.segment_begin, 3), (std::vector{0, 3, 5}));
  EXPECT_EQ(list(shape.lora[1].batch.segment_slots, 2), (std::vector{slot(2), slot(1)}));
  EXPECT_EQ(shape.lora[1].batch.max_segment_rows, 3);
}

TEST_F(CudaStepInput, TheHostsRowsLieBetweenTheDevicesAndTheBases) {
  add(0, 3, 2, LoraSite::kHost);
  add(9, 1, -1);
  add(5, 1, 1, LoraSite::kHost);
  add(0, 2, -1);
  add(12, 1, 2, LoraSite::kHost);
  add(4, 2, 1, LoraSite::kHost);
  add(8, 1, 0);
  add(0, 4, 0);
  add(3, 1, 1, LoraSite::kHost);
  EXPECT_FALSE(cuda::StepInput::only_decodes({job_.sequences[2]})) << "a graph of it is not to be";
  EXPECT_TRUE(cuda::StepInput::only_decodes({job_.sequences[6]}));
  const cuda::StepShape& shape = lay_out(LoraKernel::kSgmv);
  // Decodes: the device's, host 2 (first of all in the batch), host 1 twice, base. Prefills: the
  // device's 4, host 2's 3, host 1's 2, the base's 2.
  EXPECT_EQ(shape.rows, 16);
  const int first = slot(0);
  EXPECT_THAT(
      list(input_.slots.host, shape.rows),
      ElementsAre(first, -1, -1, -1, -1, first, first, first, first, -1, -1, -1, -1, -1, -1, -1));
  const auto& rows = input_.host().rows;
  EXPECT_THAT(rows.begin, ElementsAre(1, 9));
  EXPECT_THAT(rows.count, ElementsAre(3, 5));
  std::vector<std::array<int, 3>> groups;
  for (const auto& group : input_.host().groups) {
    groups.push_back({group.adapter == on_host_[2].get() ? 2 : 1, group.begin, group.count});
  }
  EXPECT_THAT(groups, ElementsAre(std::array{2, 0, 1}, std::array{1, 1, 2}, std::array{2, 3, 3},
                                  std::array{1, 6, 2}));
  EXPECT_THAT(input_.adapters(), ElementsAre(on_device_[0].get()));
  // A merged step asks nothing of the host.
  input_.lay_out(job_, {}, /*bucketed=*/false);
  EXPECT_TRUE(input_.host().groups.empty());
  EXPECT_EQ(input_.host().rows.rows(), 0);
}

TEST_F(CudaStepInput, PaddingIsMarkedInEveryArray) {
  for (int i = 0; i < 5; ++i) add(5 + i, 1, i < 3 ? i % 2 : -1);
  const cuda::StepShape& shape = lay_out(LoraKernel::kSgmv, /*bucketed=*/true);
  EXPECT_EQ(shape.rows, 8);
  EXPECT_EQ(shape.decodes, 8);
  EXPECT_EQ(shape.sampled, 8);
  for (int row = 5; row < 8; ++row) {
    for (const auto* each : {&input_.ids, &input_.positions, &input_.cache_rows, &input_.slots,
                             &input_.contexts, &input_.sample_rows}) {
      EXPECT_EQ(each->host[row], -1);
    }
  }
  EXPECT_EQ(shape.decode_length, kBlocks * kBlockTokens);  // a bound of any length here
  ASSERT_EQ(shape.lora_parts, 1);
  EXPECT_EQ(shape.lora[0].batch.segments, 8);
  EXPECT_EQ(list(shape.lora[0].batch.segment_begin, 9), (std::vector{0, 2, 3, 3, 3, 3, 3, 3, 3}));
  EXPECT_EQ(list(shape.lora[0].batch.segment_slots, 8),
            (std::vector{slot(0), slot(1), -1, -1, -1, -1, -1, -1}));
}

// SGMV's grid has tiles of the longest segment for each row: with the rows themselves as a bound, a
// batch of 256 adapters would launch four times its blocks, all of the others empty.
TEST(CudaStepInputBuckets, TheLongestSegmentHasABucketOfItsOwn) {
  const ModelConfig model = small_model();
  DevicePlan plan = small_plan(DType::kBf16);
  plan.limits.max_batch = 256;
  plan.limits.max_batch_tokens = 256;
  cuda::MemoryPlan memory;
  cuda::AdapterStore::plan(model, plan, &memory);
  cuda::Arena arena(memory.total());
  cuda::PinnedPool pinned;
  const auto store = std::make_shared<cuda::AdapterStore>(model, plan, &arena, &pinned);
  std::vector<std::unique_ptr<cuda::CudaAdapter>> packed;
  for (int i = 0; i < 4; ++i) {
    packed.push_back(store->load(*random_adapter(model, "a", 8, all_targets(), 1), 64));
  }
  std::vector<std::byte> bytes(cuda::StepInput::bytes(model, plan.limits));
  cuda::StepInput input(model, plan.limits, plan.type, bytes.data(), bytes.data());
  // Rows of each adapter; the bound.
  for (const auto& [rows, bound] :
       std::vector<std::pair<std::vector<int>, int>>{{{40, 40, 40, 40}, 64},
                                                     {{65, 64, 64, 60}, 128},
                                                     {{128, 20, 20, 20}, 128},
                                                     {{129, 20, 20, 20}, 256},
                                                     {{3, 2}, 8}}) {
    DeviceJob job;
    job.mode.kernel = LoraKernel::kSgmv;
    std::vector<const DeviceAdapter*> adapters;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (int row = 0; row < rows[i]; ++row) {
        job.sequences.push_back(sequence(prompt(model, 6, 1), 5, blocks(7, 20), nth(i)));
        adapters.push_back(packed[i].get());
      }
    }
    const cuda::StepShape& shape = input.lay_out(job, adapters, /*bucketed=*/true);
    ASSERT_EQ(shape.lora_parts, 1);
    EXPECT_EQ(shape.lora[0].batch.max_segment_rows, bound);
    EXPECT_EQ(shape.lora[0].batch.segments, shape.decodes);
  }
}

TEST(CudaPinnedPool, WhatIsGivenBackServesTheNextWhoWantsAboutAsMuch) {
  cuda::PinnedPool pool;
  constexpr std::size_t kPage = 4096;
  const std::byte* const first = pool.take(9 * kPage + 1).get();  // ten pages, and given back
  EXPECT_EQ(pool.take(10 * kPage).get(), first);
  EXPECT_EQ(pool.take(8 * kPage).get(), first);
  const HostMemory small = pool.take(7 * kPage);
  EXPECT_NE(small.get(), first) << "three pages would be idle";
  const HostMemory large = pool.take(10 * kPage + 1);
  EXPECT_NE(large.get(), first) << "too small";
  const HostMemory a = pool.take(9 * kPage);
  const HostMemory b = pool.take(9 * kPage);
  EXPECT_EQ(a.get(), first);
  EXPECT_NE(b.get(), first);
}

TEST_F(CudaStepInput, NothingIsWrittenBeyondItsBytes) {
  for (int i = 0; i < 12; ++i) add(0, i < 4 ? 20 : 15, i % 4);  // as many as there may be
  for (const LoraKernel kernel : {LoraKernel::kSgmv, LoraKernel::kEinsum}) {
    const cuda::StepShape& shape = lay_out(kernel);
    EXPECT_EQ(shape.rows, 200);
    EXPECT_LE(input_.used_bytes(), bytes_);
    for (std::size_t i = bytes_; i < memory_.size(); ++i) EXPECT_EQ(memory_[i], std::byte{0x5a});
  }
}

}  // namespace
}  // namespace servelab
