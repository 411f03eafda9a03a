// Regression trees as flat arrays: random forests and single trees, as `servelab train` writes
// them.
#ifndef SERVELAB_PREDICT_FOREST_H_
#define SERVELAB_PREDICT_FOREST_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace servelab {

// What a placement of adapters on one GPU looks like to a model (placement paper, 6). Single
// precision, as scikit-learn compares them.
inline constexpr std::array kFeatureNames = {"adapters",  "rate_sum", "rate_std", "size_max",
                                             "size_mean", "size_std", "slots"};
using Features = std::array<float, kFeatureNames.size()>;

// Trees one after another, each in preorder: a node's left child follows it. Of equal length,
// `roots` aside.
struct ForestArrays {
  std::vector<std::int64_t> roots;    // by tree: its first node, ascending from 0
  std::vector<std::int64_t> feature;  // that a node asks about; -1: a leaf
  std::vector<std::int64_t> right;    // the node for features above the threshold; a leaf's: any
  std::vector<double> value;          // threshold, or what a leaf predicts
};

class Forest {
 public:
  // Throws SpecError, beginning with `what`, unless every path from a root ends in a leaf.
  Forest(const ForestArrays& arrays, const std::string& what);

  double predict(const Features& features) const;  // mean over the trees, added up in their order

  std::size_t trees() const { return roots_.size(); }
  std::size_t leaves() const;  // logical rules that the trees come to

 private:
  struct Node {
    double value;
    std::int32_t right;
    std::int32_t feature;
  };
  std::vector<std::int32_t> roots_;
  std::vector<Node> nodes_;
};

}  // namespace servelab

#endif  // SERVELAB_PREDICT_FOREST_H_
