// `servelab place`: adapters and their rates in, GPUs out (placement paper, 7): a table, a plan
// that specs run (`route: as-planned`), and the command line of a vLLM server for each GPU.
#ifndef SERVELAB_CLI_PLACE_H_
#define SERVELAB_CLI_PLACE_H_

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace servelab {

struct PlaceArguments {
  std::string experiments = "experiments";
  std::string adapters;   // CSV: name, rank, rate; may have path
  std::string spec;       // in its place: the adapters of a spec's first position
  std::string trace;      // likewise: of a trace as servelab export writes it
  std::string from;       // a plan that is in use: what moves
  std::string predictor;  // in base/predictor/, or a path; empty: by model and hardware
  std::string model, hardware;
  std::string served_model;  // what vLLM is told to serve
  std::string method = "proposed";
  std::string last_test = "error";
  std::string predict;  // CSV of features, to be predicted in place of a placement
  int gpus = 0;
  std::optional<double> margin;  // rates are taken to be higher by this share; else as calibrated
  int verify = 0;                // seeds to simulate the plan with
  std::string out = "plan.json";
  std::string data_dir;
};

CLI::App* declare_place(CLI::App* app, PlaceArguments* arguments);

// Returns the exit code: 0; 1 when --verify finds a GPU that starves; 3 when no placement serves
// the workload on so many GPUs. Throws SpecError for bad input.
int place_command(const PlaceArguments& arguments);

}  // namespace servelab

#endif  // SERVELAB_CLI_PLACE_H_
