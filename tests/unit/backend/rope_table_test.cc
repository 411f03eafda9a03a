// Rotary frequencies against transformers' (tests/golden/rope_frequencies.json).
#include "engine/backend/device/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "engine/model/json_file.h"

namespace servelab {
namespace {

RopeScaling scaling_of(const Json& rope) {
  RopeScaling scaling;
  scaling.type = rope["rope_type"] == "default" ? "none" : rope["rope_type"].get<std::string>();
  scaling.factor = rope.value("factor", 1.0);
  scaling.low_freq_factor = rope.value("low_freq_factor", 1.0);
  scaling.high_freq_factor = rope.value("high_freq_factor", 4.0);
  scaling.original_max_position = rope.value("original_max_position_embeddings", 8192);
  return scaling;
}

// PyTorch's pow() of f32 is not always the nearest value: one frequency in a table may be its
// neighbour. Angles at position 100,000 are then apart by what f32 rounds there, and no more.
TEST(RopeTable, FrequenciesAreRoundedAsInTransformers) {
  const std::string path = std::string(SERVELAB_SOURCE_DIR) + "/tests/golden/rope_frequencies.json";
  const Json rows = parse_json<Json>(read_text_file(path), path);
  ASSERT_EQ(rows.size(), 5u);
  for (const Json& row : rows) {
    ModelConfig model;
    model.head_dim = row["head_dim"];
    model.rope_theta = row["rope"]["rope_theta"];
    model.rope_scaling = scaling_of(row["rope"]);
    const std::vector<float> ours = rope_frequencies(model);
    ASSERT_EQ(ours.size(), row["frequencies"].size());
    int different = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const float theirs = row["frequencies"][i];
      different += ours[i] == theirs ? 0 : 1;
      EXPECT_LE(std::abs(ours[i] - theirs), std::nextafter(theirs, 2.0f) - theirs);
      constexpr float kPosition = 100000;
      const float angle = kPosition * theirs;
      EXPECT_NEAR(kPosition * ours[i], angle, 2 * (std::nextafter(angle, 1e9f) - angle));
    }
    EXPECT_LE(different, 1) << row["rope"].dump();
  }
}

}  // namespace
}  // namespace servelab
