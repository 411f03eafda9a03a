// Weights from the generator and from Hugging Face folders.
#include "engine/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/core/digest.h"
#include "tests/support/error_of.h"
#include "tests/unit/model/weights_testing.h"

namespace servelab {
namespace {

using test::bytes_of;
using test::error_of;
using test::hf_tensors;
using test::save_hf_model;
using test::TemporaryFolder;
using test::tiny_model;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Tensors = test::NamedTensors;
using Change = std::function<void(Tensors*)>;

// The model as it is read from `folder`, where it was written with `change` made to its tensors.
std::unique_ptr<ModelWeights> read_changed(const TemporaryFolder& folder, const ModelConfig& model,
                                           const ModelWeights& written, const Change& change) {
  auto tensors = hf_tensors(model, written);
  change(&tensors);
  save_hf_model(folder, model, tensors);
  return load_hf_weights(folder.path(), load_hf_config(folder.path()));
}

ModelConfig qwen_like() {
  ModelConfig model = tiny_model();
  model.qkv_bias = true;
  model.tied_embeddings = true;
  return model;
}

TEST(WeightsTest, RandomWeightsAreTheSameOnEveryMachine) {
  const ModelConfig model = qwen_like();
  std::string all;
  for (const auto& [name, tensor] : hf_tensors(model, *random_weights(model, 42))) {
    all += name + bytes_of(tensor);
  }
  EXPECT_EQ(sha256_hex(all).substr(0, 16), "7f886eb4c253fb5a");
  const auto adapter = random_adapter(model, "a", 4, {"q", "down"}, 7);
  EXPECT_EQ(sha256_hex(bytes_of(adapter->find(1, LinearLayer::kDown)->b)).substr(0, 16),
            "9c451560d20a9485");
  EXPECT_EQ(adapter->find(0, LinearLayer::kK), nullptr);
}

TEST(WeightsTest, RandomWeightsHaveTheirDeviationAndDifferBySeed) {
  ModelConfig model = tiny_model();
  model.vocab = 5000;
  const auto weights = random_weights(model, 1);
  const Tensor table = weights->tensor(ModelTensor::kEmbedding);
  double sum = 0;
  double squares = 0;
  const std::size_t count = 5000 * 8;
  for (std::size_t i = 0; i < count; ++i) {
    sum += test::value_at(table, i);
    squares += std::pow(test::value_at(table, i), 2);
  }
  EXPECT_NEAR(sum / count, 0, 5e-4);
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 5e-4);
  EXPECT_EQ(bytes_of(table), bytes_of(random_weights(model, 1)->tensor(ModelTensor::kEmbedding)));
  EXPECT_NE(bytes_of(table), bytes_of(random_weights(model, 2)->tensor(ModelTensor::kEmbedding)));
  EXPECT_NE(bytes_of(table), bytes_of(weights->tensor(ModelTensor::kLmHead)));
  model.tied_embeddings = true;
  EXPECT_EQ(bytes_of(table), bytes_of(random_weights(model, 1)->tensor(ModelTensor::kLmHead)));
}

TEST(WeightsTest, AHuggingFaceFolderHoldsWhatWasWritten) {
  for (const ModelConfig& model : {tiny_model(), qwen_like()}) {
    const TemporaryFolder folder;
    const auto written = random_weights(model, 3);
    save_hf_model(folder, model, hf_tensors(model, *written));
    const ModelConfig read = load_hf_config(folder.path());
    EXPECT_EQ(read.parameters(), model.parameters());
    const auto weights = load_hf_weights(folder.path(), read);
    EXPECT_EQ(weights->type(), kernels::DType::kBf16);
    const auto expected = hf_tensors(model, *written);
    const auto actual = hf_tensors(model, *weights);
    ASSERT_EQ(expected.size(), actual.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(bytes_of(actual[i].second), bytes_of(expected[i].second)) << actual[i].first;
    }
    EXPECT_EQ(bytes_of(weights->tensor(ModelTensor::kLmHead)),
              bytes_of(written->tensor(ModelTensor::kLmHead)));
  }
}

TEST(WeightsTest, MissingWrongAndExtraTensorsAreNamed) {
  const ModelConfig model = tiny_model();
  const auto weights = random_weights(model, 3);
  const auto error = [&](const Change& change) {
    const TemporaryFolder folder;
    return error_of([&] {
      for (const auto& [name, tensor] :
           hf_tensors(model, *read_changed(folder, model, *weights, change))) {
        bytes_of(tensor);
      }
    });
  };
  EXPECT_EQ(error([](Tensors*) {}), "");
  EXPECT_THAT(error([](Tensors* t) { t->erase(t->begin() + 2); }),
              HasSubstr("'lm_head.weight' is missing"));
  EXPECT_THAT(error([](Tensors* t) { std::swap((*t)[0].second, (*t)[3].second); }),
              AllOf(HasSubstr("embed_tokens"), HasSubstr("needs [20, 8]")));
  EXPECT_THAT(error([](Tensors* t) {
                t->emplace_back("model.layers.0.self_attn.o_proj.bias", (*t)[1].second);
              }),
              HasSubstr("o_proj.bias' has no place"));
  EXPECT_EQ(error([](Tensors* t) {
              t->emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", (*t)[1].second);
            }),
            "");
  const kernels::Bf16 nan[8] = {{}, {}, {}, {0x7fc0}, {}, {}, {}, {}};
  EXPECT_THAT(error([&](Tensors* t) { (*t)[1].second.data = nan; }),
              AllOf(HasSubstr("'model.norm.weight'"), HasSubstr("[3] is not finite")));
}

TEST(WeightsTest, ATiedModelHasOneTableUnderEitherNameOrBoth) {
  const ModelConfig model = qwen_like();
  const auto written = random_weights(model, 3);
  const auto head_of = [&](const Change& change) {
    const TemporaryFolder folder;
    const auto weights = read_changed(folder, model, *written, change);
    EXPECT_EQ(bytes_of(weights->tensor(ModelTensor::kEmbedding)),
              bytes_of(weights->tensor(ModelTensor::kLmHead)));
    return bytes_of(weights->tensor(ModelTensor::kLmHead));
  };
  const std::string table = bytes_of(written->tensor(ModelTensor::kEmbedding));
  EXPECT_EQ(head_of([](Tensors*) {}), table);
  EXPECT_EQ(head_of([](Tensors* t) { t->front().first = "lm_head.weight"; }), table);
  EXPECT_EQ(head_of([](Tensors* t) { t->emplace_back("lm_head.weight", t->front().second); }),
            table);
  const auto other = random_weights(model, 4);
  const auto differ = [&](Tensors* t) {
    t->emplace_back("lm_head.weight", other->tensor(ModelTensor::kEmbedding));
  };
  EXPECT_THAT(error_of([&] { head_of(differ); }),
              AllOf(HasSubstr("'lm_head.weight' differs"), HasSubstr("tie_word_embeddings")));
}

TEST(WeightsTest, TheTypeHoldsAllMatricesExactly) {
  const ModelConfig model = tiny_model();
  const auto written = random_weights(model, 3);
  const auto type_of = [&](const std::string& widened) {
    const TemporaryFolder folder;
    auto tensors = hf_tensors(model, *written);
    std::vector<float> values;
    for (auto& [name, tensor] : tensors) {
      if (name != widened) continue;
      const auto count =
          static_cast<std::size_t>(tensor.rows) * static_cast<std::size_t>(tensor.columns);
      for (std::size_t i = 0; i < count; ++i) values.push_back(test::value_at(tensor, i));
      tensor.type = kernels::DType::kF32;
      tensor.data = values.data();
    }
    save_hf_model(folder, model, tensors);
    return load_hf_weights(folder.path(), load_hf_config(folder.path()))->type();
  };
  EXPECT_EQ(type_of(""), kernels::DType::kBf16);
  EXPECT_EQ(type_of("model.norm.weight"), kernels::DType::kBf16);  // vectors are F32 in engines
  EXPECT_EQ(type_of("model.layers.1.self_attn.k_proj.weight"), kernels::DType::kF32);
}

TEST(WeightsTest, AModelFileMustAgreeWithTheFolderThatItNames) {
  const TemporaryFolder folder;
  const ModelConfig model = tiny_model();
  save_hf_model(folder, model, hf_tensors(model, *random_weights(model, 3)));
  const std::string yaml =
      "name: mine\nlayers: 2\nhidden: 8\nheads: 2\nkv_heads: 1\nhead_dim: 4\nffn: 12\nvocab: 20\n"
      "max_context_tokens: 32\nweights: .\nsource: test\n";
  const auto error = [&](const std::string& more) {
    const ModelConfig config = load_model_config(folder.file("m.yaml", yaml + more));
    return error_of([&] { load_hf_weights(config.weights, config); });
  };
  EXPECT_EQ(error(""), "");
  EXPECT_THAT(error("rope_theta: 20000\n"),
              AllOf(HasSubstr("'rope_theta' 10000"), HasSubstr("20000")));
  EXPECT_THAT(error("rope_scaling: {type: linear, factor: 2}\n"), HasSubstr("rope_scaling.type"));
  EXPECT_THAT(error("rms_norm_eps: 1e-6\n"), HasSubstr("rms_norm_eps"));
  std::filesystem::remove(folder / "model.safetensors");
  EXPECT_THAT(error(""), HasSubstr("neither"));
}

}  // namespace
}  // namespace servelab
