// The CUDA engine's parts that need no device: the memory plan, stretches of memory, and where the
// rows of a step lie.
#include <gmock/gmock.h>

#include <map>

#include "engine/backend/cuda/memory_plan.h"
#include "engine/backend/cuda/range_allocator.h"
#include "tests/cuda_engine/engine_testing.h"
#include "tests/cuda_engine/host_device.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words
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
    cuda::CudaExecutor(model, *weights, small_plan(DType::kBf16));
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
    EXPECT_THROW(cuda::CudaExecutor(model, *random_weights(model, 1), small_plan(DType::kBf16)),
                 SpecError);
  }
}

// --- rows of a step ---

class CudaStepInput : public ::testing::Test {
 protected:
  CudaStepInput()
      : engines_(small_plan(DType::kBf16)),
        bytes_(cuda::StepInput::bytes(engines_.model, plan_.limits)),
        memory_(bytes_ + 64, std::byte{0x5a}),
        input_(engines_.model, plan_.limits, plan_.type, memory_.data(), memory_.data()) {}

  Part part(int context, int tokens, int adapter) {
    Part part;
    part.ids = prompt(engines_.model, context + tokens, 1);
    part.context = static_cast<std::size_t>(context);
    part.table = blocks(7, 20);
    if (adapter >= 0) part.adapter = engines_.on_cuda[static_cast<std::size_t>(adapter)].get();
    return part;
  }
  int slot(int adapter) const {
    return static_cast<const cuda::CudaAdapter&>(
               *engines_.on_cuda[static_cast<std::size_t>(adapter)])
        .slot();
  }
  static std::vector<int> list(const std::int32_t* data, int count) { return {data, data + count}; }

  DevicePlan plan_ = small_plan(DType::kBf16);
  Engines engines_;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  cuda::StepInput input_;
};

TEST_F(CudaStepInput, DecodesBeforePrefillsByAdapterAndTheBaseLast) {
  const std::vector<Part> parts = {part(0, 3, 2),  part(9, 1, -1), part(5, 1, 1), part(0, 2, -1),
                                   part(12, 1, 2), part(4, 2, 1),  part(3, 1, 1)};
  std::vector<SequenceSlice> slices;
  for (std::size_t i = 0; i < parts.size(); ++i) slices.push_back(parts[i].slice(i != 3));
  const cuda::StepShape& shape = input_.lay_out(slices, LoraKernel::kMbgmv, true, {}, false);
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

TEST_F(CudaStepInput, PaddingIsMarkedInEveryArray) {
  std::vector<Part> parts;
  for (int i = 0; i < 5; ++i) parts.push_back(part(5 + i, 1, i < 3 ? i % 2 : -1));
  std::vector<SequenceSlice> slices;
  for (const Part& each : parts) slices.push_back(each.slice());
  const cuda::StepShape& shape = input_.lay_out(slices, LoraKernel::kSgmv, true, {}, true);
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

TEST_F(CudaStepInput, NothingIsWrittenBeyondItsBytes) {
  std::vector<Part> parts;  // as many rows and sequences as there may be
  for (int i = 0; i < 12; ++i) parts.push_back(part(0, i < 4 ? 20 : 15, i % 4));
  std::vector<SequenceSlice> slices;
  for (const Part& each : parts) slices.push_back(each.slice());
  for (const LoraKernel kernel : {LoraKernel::kSgmv, LoraKernel::kEinsum}) {
    const cuda::StepShape& shape = input_.lay_out(slices, kernel, true, {}, false);
    EXPECT_EQ(shape.rows, 200);
    EXPECT_LE(input_.used_bytes(), bytes_);
    for (std::size_t i = bytes_; i < memory_.size(); ++i) EXPECT_EQ(memory_[i], std::byte{0x5a});
  }
}

}  // namespace
}  // namespace servelab
