// The golden models and adapters, through the plainest forward pass there is, against the logits
// and tokens of transformers and PEFT: what is loaded is what they load.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "engine/core/config_node.h"
#include "tests/unit/model/weights_testing.h"

namespace servelab {
namespace {

using Matrix = std::vector<std::vector<double>>;

std::vector<double> times(const Tensor& weight, const std::vector<double>& x) {
  std::vector<double> y(static_cast<std::size_t>(weight.rows), 0);
  for (std::size_t i = 0; i < y.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) {
      y[i] += static_cast<double>(test::value_at(weight, i * x.size() + j)) * x[j];
    }
  }
  return y;
}

void add(std::vector<double>* to, const std::vector<double>& what, double scale = 1) {
  for (std::size_t i = 0; i < to->size(); ++i) (*to)[i] += scale * what[i];
}

class PlainModel {
 public:
  PlainModel(const ModelConfig& model, const ModelWeights& weights, const LoraWeights* adapter)
      : model_(model), weights_(weights), adapter_(adapter) {}

  Matrix logits(const std::vector<int>& tokens) const {
    Matrix x;
    const Tensor table = weights_.tensor(ModelTensor::kEmbedding);
    const auto hidden = static_cast<std::size_t>(model_.hidden);
    for (const int token : tokens) {
      std::vector<double> row(hidden);
      for (std::size_t i = 0; i < hidden; ++i) {
        row[i] = test::value_at(table, static_cast<std::size_t>(token) * hidden + i);
      }
      x.push_back(row);
    }
    for (int layer = 0; layer < model_.layers; ++layer) {
      attend(layer, &x);
      for (std::vector<double>& row : x) {
        const auto in = normed(row, weights_.vector(layer, LayerVector::kFfnNorm));
        std::vector<double> gate = linear(layer, LinearLayer::kGate, in);
        const std::vector<double> up = linear(layer, LinearLayer::kUp, in);
        for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        add(&row, linear(layer, LinearLayer::kDown, gate));
      }
    }
    Matrix logits;
    for (const std::vector<double>& row : x) {
      logits.push_back(times(weights_.tensor(ModelTensor::kLmHead),
                             normed(row, weights_.tensor(ModelTensor::kFinalNorm))));
    }
    return logits;
  }

 private:
  std::vector<double> normed(const std::vector<double>& x, const Tensor& weight) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + model_.rms_norm_eps);
    std::vector<double> y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y.push_back(x[i] * scale * test::value_at(weight, i));
    }
    return y;
  }

  std::vector<double> linear(int layer, LinearLayer which, const std::vector<double>& x) const {
    std::vector<double> y = times(weights_.linear(layer, which), x);
    const LoraMatrices* lora = adapter_ == nullptr ? nullptr : adapter_->find(layer, which);
    if (lora != nullptr) add(&y, times(lora->b, times(lora->a, x)), lora->scale);
    return y;
  }

  double frequency(int i) const {
    const RopeScaling& rope = model_.rope_scaling;
    const double plain = std::pow(model_.rope_theta, -2.0 * i / model_.head_dim);
    if (rope.type == "none") return plain;
    const double turns = rope.original_max_position * plain / (2 * std::numbers::pi);
    const double keep = rope.type == "linear"
                            ? 0
                            : std::clamp((turns - rope.low_freq_factor) /
                                             (rope.high_freq_factor - rope.low_freq_factor),
                                         0.0, 1.0);
    return keep * plain + (1 - keep) * plain / rope.factor;
  }

  void rotate(std::vector<double>* x, std::size_t position) const {
    const auto half = static_cast<std::size_t>(model_.head_dim / 2);
    for (std::size_t head = 0; head < x->size(); head += 2 * half) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequency(static_cast<int>(i));
        double& low = (*x)[head + i];
        double& high = (*x)[head + half + i];
        const double turned = low * std::cos(angle) - high * std::sin(angle);
        high = high * std::cos(angle) + low * std::sin(angle);
        low = turned;
      }
    }
  }

  Matrix projected(int layer, LinearLayer which, LayerVector bias, const Matrix& in) const {
    Matrix out;
    for (const std::vector<double>& row : in) {
      out.push_back(linear(layer, which, row));
      if (!model_.qkv_bias) continue;
      const Tensor values = weights_.vector(layer, bias);
      for (std::size_t i = 0; i < out.back().size(); ++i) {
        out.back()[i] += test::value_at(values, i);
      }
    }
    return out;
  }

  void attend(int layer, Matrix* x) const {
    Matrix in;
    for (const auto& row : *x) {
      in.push_back(normed(row, weights_.vector(layer, LayerVector::kAttentionNorm)));
    }
    Matrix q = projected(layer, LinearLayer::kQ, LayerVector::kQBias, in);
    Matrix k = projected(layer, LinearLayer::kK, LayerVector::kKBias, in);
    const Matrix v = projected(layer, LinearLayer::kV, LayerVector::kVBias, in);
    const auto d = static_cast<std::size_t>(model_.head_dim);
    for (std::size_t t = 0; t < x->size(); ++t) {
      rotate(&q[t], t);
      rotate(&k[t], t);
      std::vector<double> all(q[t].size(), 0);
      for (std::size_t head = 0; head < static_cast<std::size_t>(model_.heads); ++head) {
        const std::size_t kv = head / static_cast<std::size_t>(model_.heads / model_.kv_heads);
        std::vector<double> weight(t + 1, 0);
        double sum = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t i = 0; i < d; ++i) weight[s] += q[t][head * d + i] * k[s][kv * d + i];
          weight[s] = std::exp(weight[s] / std::sqrt(static_cast<double>(d)));
          sum += weight[s];
        }
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t i = 0; i < d; ++i) {
            all[head * d + i] += weight[s] / sum * v[s][kv * d + i];
          }
        }
      }
      add(&(*x)[t], linear(layer, LinearLayer::kO, all));
    }
  }

  const ModelConfig& model_;
  const ModelWeights& weights_;
  const LoraWeights* adapter_;
};

std::vector<int> numbers(const ConfigNode& list) {
  std::vector<int> values;
  for (const ConfigNode& item : list.items) values.push_back(std::stoi(item.scalar));
  return values;
}

void expect_near(const std::vector<double>& actual, const Tensor& expected, std::size_t row,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), static_cast<std::size_t>(expected.columns));
  double worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    worst =
        std::max(worst, std::abs(actual[i] - test::value_at(expected, row * actual.size() + i)));
  }
  EXPECT_LT(worst, 2e-4) << what;
}

class GoldenModels : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenModels, LogitsAndFirstTokensAreThoseOfTransformersAndPeft) {
  const std::string folder = test::golden_folder(GetParam());
  const ModelConfig model = load_hf_config(folder + "/model");
  const auto weights = load_hf_weights(folder + "/model", model);
  const TensorFiles logits = TensorFiles::open_file(folder + "/expected.safetensors");
  const ConfigNode expected = parse_yaml_file(folder + "/expected.json");
  const ConfigNode& prompts = *expected.find("prompts");
  const std::size_t last_prompt = prompts.items.size() - 1;
  ASSERT_EQ(expected.find("cases")->members.size(), 5u);
  for (const ConfigMember& entry : expected.find("cases")->members) {
    const auto adapter =
        entry.key == "base" ? nullptr : load_peft_adapter(folder + "/" + entry.key, model);
    if (adapter != nullptr) {
      EXPECT_EQ("r" + std::to_string(adapter->rank()), entry.key);
    }
    const PlainModel plain(model, *weights, adapter.get());
    for (std::size_t p = 0; p <= last_prompt; ++p) {
      const std::string name = entry.key + "." + std::to_string(p);
      const std::vector<int> prompt = numbers(prompts.items[p]);
      const Matrix rows = plain.logits(prompt);
      expect_near(rows.back(), logits.take(name + ".last", 0, model.vocab), 0, name);
      const auto best = std::max_element(rows.back().begin(), rows.back().end());
      EXPECT_EQ(best - rows.back().begin(), numbers(entry.value.find("greedy")->items[p]).front());
      if (p != last_prompt) continue;
      const Tensor all = logits.take(name + ".all", static_cast<int>(prompt.size()), model.vocab);
      for (std::size_t i = 0; i < rows.size(); ++i) expect_near(rows[i], all, i, name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModels, ::testing::Values("llama", "mistral", "qwen2"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace servelab
