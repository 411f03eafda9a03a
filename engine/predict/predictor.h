// The models of the placement paper's section 6 for one model on one server: what a GPU serves, and
// whether it starves. `servelab train` fits them and writes the file.
#ifndef SERVELAB_PREDICT_PREDICTOR_H_
#define SERVELAB_PREDICT_PREDICTOR_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/predict/forest.h"

namespace servelab {

struct Predictor {
  std::string model, hardware;  // names, as specs have them
  std::string settings;         // JSON of the data set's model, hardware, lora, engine and workload
  std::string build_id;         // of the program that simulated the data set
  std::string digest;           // of the file's contents
  Features low{}, high{};       // the training range
  Forest throughput, starvation;              // random forests: tokens/s; probability
  Forest throughput_rules, starvation_rules;  // one tree each
  // Of simulations not trained on: by how much (a share of it) the forest's throughput is missed in
  // 90 % of them.
  double throughput_error = 0;
  // By what share rates are to be taken too high, so that of the simulations that margins were
  // calibrated on (not trained on) each that starves is predicted to: forests', and the trees'.
  double margin = 0, margin_rules = 0;

  // Features out of the training range, as text for people; empty where all are inside.
  std::string outside(const Features& features) const;
};

// Throws SpecError for a file that is absent, truncated, changed, or holds something else.
std::shared_ptr<const Predictor> load_predictor(const std::string& path);

// The predictor of this digest that load_predictor() has read in this process. A point's settings
// hold the digest, whatever the file was called. Throws SpecError where there is none.
std::shared_ptr<const Predictor> predictor_of(const std::string& digest);

}  // namespace servelab

#endif  // SERVELAB_PREDICT_PREDICTOR_H_
