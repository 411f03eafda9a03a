// The CPU engine against transformers + PEFT (tests/golden/models): logits within 1e-4 in f32 and
// the same 64 greedy tokens for the base model, for one adapter, merged or not, and for a mixed
// batch of the base and four adapters of ranks 4, 8, 16 and 64 under every LoRA kernel, also where
// steps begin with an adapter on the host and go on with it on the device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "engine/backend/cpu/cpu_device.h"
#include "engine/cli/generate.h"
#include "engine/core/config_node.h"
#include "tests/support/device_testing.h"
#include "tests/unit/model/weights_testing.h"

namespace servelab {
namespace {

constexpr double kTolerance = 1e-4;
constexpr int kBlocksPerSequence = 16;
constexpr int kTokensPerBlock = 8;

std::vector<std::int32_t> ids_of(const ConfigNode& list) {
  std::vector<std::int32_t> ids;
  for (const ConfigNode& item : list.items) ids.push_back(std::stoi(item.scalar));
  return ids;
}

// One family's fixtures, and an device for it.
class Family {
 public:
  Family(const std::string& name, kernels::Isa isa)
      : folder_(test::golden_folder(name)),
        model(load_hf_config(folder_ + "/model")),
        logits(TensorFiles::open_file(folder_ + "/expected.safetensors")) {
    const ConfigNode expected = parse_yaml_file(folder_ + "/expected.json");
    for (const ConfigNode& prompt : expected.find("prompts")->items) {
      prompts.push_back(ids_of(prompt));
    }
    CpuDeviceOptions options;
    options.isa = isa;
    options.type = kernels::DType::kF32;
    options.threads = 2;
    options.block_tokens = kTokensPerBlock;
    options.kv_blocks = 5 * kBlocksPerSequence;
    device = std::make_unique<test::ComesBefore<CpuDevice>>(
        model, *load_hf_weights(folder_ + "/model", model), options);
    for (const ConfigMember& entry : expected.find("cases")->members) {
      Case& added = cases.emplace_back();
      added.name = entry.key;
      for (const ConfigNode& tokens : entry.value.find("greedy")->items) {
        added.greedy.push_back(ids_of(tokens));
      }
      if (entry.key == "base") continue;
      added.adapter = test::nth(cases.size());
      const auto weights = load_peft_adapter(folder_ + "/" + entry.key, model);
      test::load(device.get(), added.adapter, weights, 64);
      device->hold({added.adapter, 64}, weights);
    }
  }

  // Largest difference between a row of logits and the expected ones of a case's prompt.
  double difference(std::span<const float> row, const std::string& name, std::size_t prompt) const {
    const Tensor expected =
        logits.take(name + "." + std::to_string(prompt) + ".last", 0, model.vocab);
    double worst = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(row[i]) - test::value_at(expected, i)));
    }
    return worst;
  }

  struct Case {
    std::string name;
    std::vector<std::vector<std::int32_t>> greedy;  // by prompt
    AdapterId adapter = kBaseModel;
  };

 private:
  std::string folder_;

 public:
  ModelConfig model;
  TensorFiles logits;
  std::vector<std::vector<std::int32_t>> prompts;
  std::unique_ptr<test::ComesBefore<CpuDevice>> device;
  std::vector<Case> cases;
};

class CpuGolden : public ::testing::TestWithParam<std::tuple<const char*, kernels::Isa>> {
 protected:
  CpuGolden() : family_(std::get<0>(GetParam()), std::get<1>(GetParam())) {}

  // Continues every case's sequence for prompt `prompt` in one batch; `worst` is over their logits.
  // With `take_over` the steps begin with one adapter after the other on the host, and the device
  // takes it over at one layer after the other: each adapter at each layer.
  std::vector<std::vector<std::int32_t>> generate_mixed(std::size_t prompt, LoraKernel kernel,
                                                        double* worst, bool take_over = false) {
    const std::size_t count = family_.cases.size();
    std::vector<std::vector<std::int32_t>> ids(count, family_.prompts[prompt]);
    std::size_t context = 0;
    for (int step = 0; step < 64; ++step) {
      DeviceJob job;
      job.mode.kernel = kernel;
      for (std::size_t i = 0; i < count; ++i) {
        const int first = static_cast<int>(i) * kBlocksPerSequence;
        job.sequences.push_back(test::sequence(
            ids[i], context, test::blocks(first, kBlocksPerSequence), family_.cases[i].adapter));
      }
      const int layers = take_over ? begin_on_host(step, &job) : 0;
      const DeviceResult result = test::run_job(family_.device.get(), job);
      EXPECT_EQ(result.host_layers, layers);
      const auto vocab = static_cast<std::size_t>(family_.model.vocab);
      for (std::size_t i = 0; i < count; ++i) {
        if (step == 0) {
          *worst = std::max(*worst,
                            family_.difference(std::span(result.logits).subspan(i * vocab, vocab),
                                               family_.cases[i].name, prompt));
        }
        ids[i].push_back(result.sampled[i]);
      }
      context = ids[0].size() - 1;
    }
    for (auto& list : ids) {
      list.erase(list.begin(),
                 list.begin() + static_cast<std::ptrdiff_t>(family_.prompts[prompt].size()));
    }
    return ids;
  }

  // Of step `step`: returns the layer at which the device takes over.
  int begin_on_host(int step, DeviceJob* job) {
    std::vector<Sequence*> adapted;
    for (Sequence& sequence : job->sequences) {
      if (sequence.adapter != kBaseModel) adapted.push_back(&sequence);
    }
    const int adapters = static_cast<int>(adapted.size());
    const int choices = family_.model.layers + 1;
    EXPECT_LE(adapters * choices, 64);
    adapted[static_cast<std::size_t>(step % adapters)]->lora = LoraSite::kHost;
    job->mode.take_over = TakeOver::kLoaded;
    const int layer = step / adapters % choices;
    family_.device->before(layer, nullptr);
    return layer;
  }

  Family family_;
};

TEST_P(CpuGolden, OneSequenceUnmergedAndMerged) {
  double worst = 0;
  for (const Family::Case& c : family_.cases) {
    for (const bool merged : {false, true}) {
      if (merged && c.adapter == kBaseModel) continue;
      if (merged) test::merge(family_.device.get(), c.adapter);
      const Exec exec = merged ? Exec::kMerged : Exec::kUnmerged;
      const AdapterId adapter = merged ? kBaseModel : c.adapter;
      for (std::size_t p = 0; p < family_.prompts.size(); ++p) {
        std::vector<float> logits;
        generate(family_.device.get(), family_.prompts[p], adapter, exec, 1, {}, &logits);
        worst = std::max(worst, family_.difference(logits, c.name, p));
        EXPECT_EQ(generate(family_.device.get(), family_.prompts[p], adapter, exec, 64, {}),
                  c.greedy[p])
            << c.name << (merged ? " merged" : "") << ", prompt " << p;
      }
      test::unmerge(family_.device.get());
    }
  }
  EXPECT_LT(worst, kTolerance);
  std::printf("  %s: logits differ by at most %.1e\n", std::get<0>(GetParam()), worst);
}

TEST_P(CpuGolden, AMixedBatchUnderEveryKernel) {
  std::vector<LoraKernel> kernels = {LoraKernel::kSgmv};  // enough for the slow reference
  if (std::get<1>(GetParam()) != kernels::Isa::kReference) {
    kernels = {LoraKernel::kBgmv, LoraKernel::kMbgmv, LoraKernel::kSgmv, LoraKernel::kEinsum};
  }
  for (const LoraKernel kernel : kernels) {
    double worst = 0;
    for (std::size_t p = 0; p < family_.prompts.size(); ++p) {
      const auto outputs = generate_mixed(p, kernel, &worst);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        EXPECT_EQ(outputs[i], family_.cases[i].greedy[p]) << family_.cases[i].name;
      }
    }
    EXPECT_LT(worst, kTolerance);
    std::printf("  %s, mixed batch, %s: logits differ by at most %.1e\n", std::get<0>(GetParam()),
                name(kernel), worst);
  }
}

TEST_P(CpuGolden, TheDeviceTakesOverFromTheHostAtAnyLayer) {
  double worst = 0;
  for (std::size_t p = 0; p < family_.prompts.size(); ++p) {
    const auto outputs = generate_mixed(p, LoraKernel::kSgmv, &worst, true);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i], family_.cases[i].greedy[p]) << family_.cases[i].name;
    }
  }
  EXPECT_LT(worst, kTolerance);
}

std::vector<kernels::Isa> isas() {
  std::vector<kernels::Isa> list;
  for (const auto isa : kernels::kIsas) {
    if (kernels::supported(isa)) list.push_back(isa);
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Families, CpuGolden,
                         ::testing::Combine(::testing::Values("llama", "mistral", "qwen2"),
                                            ::testing::ValuesIn(isas())),
                         [](const auto& info) {
                           std::string text = kernels::ops(std::get<1>(info.param)).name;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return std::string(std::get<0>(info.param)) + "_" + text;
                         });

}  // namespace
}  // namespace servelab
