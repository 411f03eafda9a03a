// Tensor parallelism's arithmetic: the ranks' parts of every layer, with and without an adapter,
// put together are the layer.
#include "engine/model/shard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/core/check.h"
#include "engine/core/rng.h"
#include "kernels/random.h"
#include "tests/unit/model/weights_testing.h"

namespace servelab {
namespace {

ModelConfig small_model(int kv_heads) {
  ModelConfig model;
  model.name = "small";
  model.layers = 2;
  model.hidden = 24;
  model.heads = 8;
  model.kv_heads = kv_heads;
  model.head_dim = 4;
  model.ffn = 40;
  model.vocab = 32;
  model.qkv_bias = true;
  model.max_context_tokens = 64;
  model.source = "test";
  return model;
}

std::vector<double> random_row(int size, std::uint64_t seed) {
  RngStream rng(seed, "row");
  std::vector<double> row(static_cast<std::size_t>(size));
  for (double& value : row) value = rng.uniform() - 0.5;
  return row;
}

// y = x W^T.
std::vector<double> multiply(const std::vector<double>& x, const Tensor& w) {
  EXPECT_EQ(x.size(), static_cast<std::size_t>(w.columns));
  std::vector<double> y;
  for (int i = 0; i < w.rows; ++i) {
    double sum = 0;
    for (std::size_t c = 0; c < x.size(); ++c) {
      sum += x[c] * test::value_at(w, static_cast<std::size_t>(i) * x.size() + c);
    }
    y.push_back(sum);
  }
  return y;
}

std::vector<double> layer_output(const std::vector<double>& x, const ModelWeights& weights,
                                 const LoraWeights* adapter, int layer, LinearLayer which) {
  std::vector<double> y = multiply(x, weights.linear(layer, which));
  const LoraMatrices* const m = adapter != nullptr ? adapter->find(layer, which) : nullptr;
  if (m == nullptr) return y;
  const std::vector<double> delta = multiply(multiply(x, m->a), m->b);
  EXPECT_EQ(delta.size(), y.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += m->scale * delta[i];
  return y;
}

class Sharding : public ::testing::TestWithParam<std::tuple<int, int>> {  // ranks, KV heads
 protected:
  Sharding()
      : ranks_(std::get<0>(GetParam())),
        model_(small_model(std::get<1>(GetParam()))),
        weights_(random_weights(model_, 3)),
        adapter_(random_adapter(model_, "a", 6, {"q", "k", "v", "o", "gate", "up", "down"}, 4)) {}
  int ranks_;
  ModelConfig model_;
  std::unique_ptr<ModelWeights> weights_;
  std::shared_ptr<const LoraWeights> adapter_;
};

TEST_P(Sharding, TheRanksPartsOfALayerAreTheLayer) {
  for (int layer = 0; layer < model_.layers; ++layer) {
    for (int i = 0; i < kLinearLayers; ++i) {
      const auto which = static_cast<LinearLayer>(i);
      const bool kv = which == LinearLayer::kK || which == LinearLayer::kV;
      for (const bool adapted : {false, true}) {
        const Tensor whole = weights_->linear(layer, which);
        const auto x = random_row(whole.columns, 7);
        const auto expected =
            layer_output(x, *weights_, adapted ? adapter_.get() : nullptr, layer, which);
        std::vector<double> got(expected.size());
        std::vector<int> written(expected.size());
        for (int rank = 0; rank < ranks_; ++rank) {
          const Shard shard{rank, ranks_};
          const auto part = shard_weights(model_, *weights_, shard);
          const auto lora = shard_adapter(model_, *adapter_, shard);
          const ShardRange range = shard_range(model_, which, shard);
          const LinearShape shape = linear_shape(shard_model(model_, shard),
                                                 kLinearLayerNames[static_cast<std::size_t>(i)]);
          std::vector<double> input = x;
          if (!splits_outputs(which)) {
            input.assign(x.begin() + range.begin, x.begin() + range.begin + range.count);
          }
          ASSERT_EQ(static_cast<int>(input.size()), shape.in);
          const auto y = layer_output(input, *part, adapted ? lora.get() : nullptr, layer, which);
          ASSERT_EQ(static_cast<int>(y.size()), shape.out);
          const int first = splits_outputs(which) ? range.begin : 0;
          for (std::size_t c = 0; c < y.size(); ++c) {
            const auto at = static_cast<std::size_t>(first) + c;
            if (splits_outputs(which)) {
              got[at] = y[c];
            } else {
              got[at] += y[c];
            }
            ++written[at];
          }
        }
        for (std::size_t c = 0; c < expected.size(); ++c) {
          EXPECT_NEAR(got[c], expected[c], 1e-12) << kLinearLayerNames[static_cast<std::size_t>(i)];
          if (splits_outputs(which)) {
            EXPECT_EQ(written[c], kv ? std::max(1, ranks_ / model_.kv_heads) : 1);
          }
        }
      }
    }
  }
}

// What a device generates for a rank is what the host would have copied.
TEST_P(Sharding, GeneratedPartsAreThePartsOfWhatIsGenerated) {
  int generated = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto part = shard_weights(model_, *weights_, {rank, ranks_});
    const auto check = [&](const std::optional<RandomBell>& bell, const Tensor& tensor) {
      if (!bell.has_value()) return;
      ++generated;
      for (int i = 0; i < tensor.rows * tensor.columns; ++i) {
        const float value =
            kernels::random_value(kernels::RandomKind::kBell, bell->key,
                                  static_cast<std::uint64_t>(bell->first + i), bell->step);
        ASSERT_EQ(kernels::to_float(kernels::to_bf16(value)),
                  test::value_at(tensor, static_cast<std::size_t>(i)));
      }
    };
    for (int i = 0; i < kLinearLayers; ++i) {
      const auto which = static_cast<LinearLayer>(i);
      check(part->bell(1, which), part->linear(1, which));
    }
    check(part->bell(ModelTensor::kLmHead), part->tensor(ModelTensor::kLmHead));
    check(part->bell(ModelTensor::kEmbedding), part->tensor(ModelTensor::kEmbedding));
  }
  EXPECT_EQ(generated, ranks_ * (ranks_ == 1 ? 9 : 7));  // o and down are split by columns
}

TEST_P(Sharding, HeadsBiasesAndVocabularyArePartedOnce) {
  const auto x = random_row(model_.hidden, 8);
  const auto expected = multiply(x, weights_->tensor(ModelTensor::kLmHead));
  std::vector<double> got;
  std::vector<double> q_bias;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Shard shard{rank, ranks_};
    const auto part = shard_weights(model_, *weights_, shard);
    const auto logits = multiply(x, part->tensor(ModelTensor::kLmHead));
    EXPECT_EQ(vocab_range(model_, shard).begin, static_cast<int>(got.size()));
    got.insert(got.end(), logits.begin(), logits.end());
    const Tensor bias = part->vector(0, LayerVector::kQBias);
    for (int i = 0; i < bias.columns; ++i) {
      q_bias.push_back(test::value_at(bias, static_cast<std::size_t>(i)));
    }
    EXPECT_EQ(part->vector(0, LayerVector::kKBias).columns,
              shard_model(model_, shard).kv_heads * model_.head_dim);
    EXPECT_EQ(part->tensor(ModelTensor::kEmbedding).rows, model_.vocab);
    // A rank's query heads belong to its KV heads.
    const int group = model_.heads / model_.kv_heads;
    const int first_head = shard_range(model_, LinearLayer::kQ, shard).begin / model_.head_dim;
    EXPECT_EQ(first_head / group,
              shard_range(model_, LinearLayer::kK, shard).begin / model_.head_dim);
  }
  EXPECT_EQ(got, expected);
  const Tensor whole = weights_->vector(0, LayerVector::kQBias);
  ASSERT_EQ(q_bias.size(), static_cast<std::size_t>(whole.columns));
  for (std::size_t i = 0; i < q_bias.size(); ++i) EXPECT_EQ(q_bias[i], test::value_at(whole, i));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Sharding,
                         ::testing::Combine(::testing::Values(1, 2, 4, 8),
                                            ::testing::Values(1, 2, 4, 8)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_ranks_" +
                                  std::to_string(std::get<1>(info.param)) + "_kv_heads";
                         });

TEST(ShardingErrors, ModelsThatCannotBeSplitAreRefused) {
  ModelConfig model = small_model(8);
  EXPECT_THROW(shard_model(model, {0, 3}), SpecError);
  model.ffn = 41;
  EXPECT_THROW(shard_model(model, {0, 2}), SpecError);
  model = small_model(8);
  model.heads = 12;
  model.kv_heads = 6;
  model.ffn = 48;
  EXPECT_THROW(shard_model(model, {0, 4}), SpecError);  // six KV heads on four ranks
}

}  // namespace
}  // namespace servelab
