#include "engine/predict/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "engine/core/check.h"
#include "engine/record/hdf5_reader.h"

namespace servelab {
namespace {

constexpr std::int64_t kSchema = 2;

// Predictors that were read, by digest: the policies of a run share them.
struct Known {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Predictor>> by_digest;
};

Known& known() {
  static Known all;
  return all;
}

Forest read_forest(const Hdf5Reader& file, const std::string& path, const std::string& name) {
  ForestArrays arrays;
  arrays.roots = file.integers(name + "/roots");
  arrays.feature = file.integers(name + "/feature");
  arrays.right = file.integers(name + "/right");
  arrays.value = file.numbers(name + "/value");
  return Forest(arrays, path + ": " + name);
}

Features read_features(const Hdf5Reader& file, const std::string& path, const std::string& name) {
  const std::vector<double> values = file.numbers(name);
  Features features;
  if (values.size() != features.size()) {
    throw SpecError(fmt::format("{}: {} holds {} numbers, not one for each of the {} features",
                                path, name, values.size(), features.size()));
  }
  for (std::size_t i = 0; i < features.size(); ++i) features[i] = static_cast<float>(values[i]);
  return features;
}

std::shared_ptr<const Predictor> read(const std::string& path) {
  const Hdf5Reader file(path);
  if (file.int_attribute("/", "predictor_schema") != kSchema) {
    throw SpecError(path + ": is of another schema; train it again (`servelab train fit`)");
  }
  const std::string digest = file.content_digest();
  const std::vector<std::string> names = file.texts("/features/names");
  if (!std::equal(names.begin(), names.end(), kFeatureNames.begin(), kFeatureNames.end())) {
    throw SpecError(path + ": its features are not this program's; train it again");
  }
  const std::vector<double> margins = file.numbers("/margins");
  if (margins.size() != 2 || !(margins[0] >= 0 && margins[1] >= 0)) {
    throw SpecError(path + ": /margins are not two shares");
  }
  return std::make_shared<const Predictor>(Predictor{
      file.text_attribute("/", "model"), file.text_attribute("/", "hardware"),
      file.texts("/settings").at(0), file.text_attribute("/", "build_id"), digest,
      read_features(file, path, "/features/low"), read_features(file, path, "/features/high"),
      read_forest(file, path, "/throughput"), read_forest(file, path, "/starvation"),
      read_forest(file, path, "/throughput_rules"), read_forest(file, path, "/starvation_rules"),
      file.numbers("/throughput_error").at(0), margins[0], margins[1]});
}

}  // namespace

std::string Predictor::outside(const Features& features) const {
  std::string text;
  for (std::size_t i = 0; i < features.size(); ++i) {
    const float slack = 1e-6f * std::max(1.f, high[i]);  // of rounding
    if (features[i] >= low[i] - slack && features[i] <= high[i] + slack) continue;
    text += fmt::format("{}{} {:g} is outside {:g} to {:g}", text.empty() ? "" : "; ",
                        kFeatureNames[i], features[i], low[i], high[i]);
  }
  return text;
}

std::shared_ptr<const Predictor> load_predictor(const std::string& path) {
  std::shared_ptr<const Predictor> predictor = read(path);
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  return all.by_digest.emplace(predictor->digest, predictor).first->second;
}

std::shared_ptr<const Predictor> predictor_of(const std::string& digest) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_digest.find(digest);
  if (found == all.by_digest.end()) {
    throw SpecError("no predictor with the digest '" + digest + "' has been read; name its file");
  }
  return found->second;
}

}  // namespace servelab
