#include "engine/predict/forest.h"

#include <algorithm>
#include <cmath>

#include "engine/core/check.h"

namespace servelab {

Forest::Forest(const ForestArrays& arrays, const std::string& what) {
  const std::size_t count = arrays.feature.size();
  const auto check = [&what](bool holds, const char* problem) {
    if (!holds) throw SpecError(what + " " + problem);
  };
  check(arrays.right.size() == count && arrays.value.size() == count && count <= INT32_MAX,
        "has columns of different lengths");
  check(!arrays.roots.empty() && arrays.roots.front() == 0, "has no tree");
  const auto nodes = static_cast<std::int64_t>(count);
  for (std::size_t tree = 0; tree < arrays.roots.size(); ++tree) {
    const std::int64_t begin = arrays.roots[tree];
    const std::int64_t end = tree + 1 < arrays.roots.size() ? arrays.roots[tree + 1] : nodes;
    check(begin >= 0 && begin < end && end <= nodes, "has a tree without nodes");
    roots_.push_back(static_cast<std::int32_t>(begin));
    for (std::int64_t at = begin; at < end; ++at) {
      const auto i = static_cast<std::size_t>(at);
      const std::int64_t feature = arrays.feature[i];
      const bool is_leaf = feature == -1;
      check(feature >= -1 && feature < static_cast<std::int64_t>(kFeatureNames.size()),
            "asks about a feature that there is not");
      check(is_leaf || (arrays.right[i] > at + 1 && arrays.right[i] < end),
            "has a node whose children are not in its tree");
      check(std::isfinite(arrays.value[i]), "has a number that is not finite");
      nodes_.push_back({arrays.value[i], is_leaf ? 0 : static_cast<std::int32_t>(arrays.right[i]),
                        static_cast<std::int32_t>(feature)});
    }
    check(nodes_.back().feature == -1, "has a node whose children are not in its tree");
  }
}

double Forest::predict(const Features& features) const {
  double sum = 0;
  for (const std::int32_t root : roots_) {
    std::int32_t at = root;
    const Node* node = &nodes_[static_cast<std::size_t>(at)];
    while (node->feature >= 0) {
      const double asked = features[static_cast<std::size_t>(node->feature)];
      at = asked <= node->value ? at + 1 : node->right;
      node = &nodes_[static_cast<std::size_t>(at)];
    }
    sum += node->value;
  }
  return sum / static_cast<double>(roots_.size());
}

std::size_t Forest::leaves() const {
  return static_cast<std::size_t>(std::count_if(nodes_.begin(), nodes_.end(),
                                                [](const Node& node) { return node.feature < 0; }));
}

}  // namespace servelab
