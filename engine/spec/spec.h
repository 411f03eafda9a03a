// An experiment as its YAML file describes it: one file per figure. load_spec() checks the
// structure; resolve_point() in point.h checks what depends on the sweep position.
#ifndef SERVELAB_SPEC_SPEC_H_
#define SERVELAB_SPEC_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config_node.h"
#include "engine/core/params.h"
#include "engine/serve/backend.h"
#include "engine/spec/library.h"

namespace servelab {

// The top level's plain keys.
struct SpecHeader {
  std::string title;
  std::string description;
  std::string model;
  std::string hardware;
  std::string backend = "twin";
  void fields(ParamFields& f);
};

struct ClusterSection {
  int replicas = 1;
  int tensor_parallel = 1;
  int repository_copies = 0;  // 0: every adapter is in every repository
  std::string route;          // empty: the technique's own
  double stop_at_s = 0;
  double max_unfinished = 1;
  double migration_delay_s = 0.001;
  std::int64_t max_waiting = 0;
  std::string when_full = "wait";
  void fields(ParamFields& f);
};

struct LoraSection {
  std::vector<std::string> targets = {"q", "k", "v", "o"};
  void fields(ParamFields& f);
};

struct RecordSection {
  bool requests = true;
  bool series = true;
  double series_bin_s = 1;
  bool decisions = false;
  bool token_times = false;
  bool steps = false;
  void fields(ParamFields& f);
};

// How a backend that really computes does it, and what backends have of their own; the twin takes
// its model's element type from here.
// Who computes LoRA on the host, as asked; what is left open is the engine's to say.
struct HostLoraSection {
  std::string by = "auto";
  int workers = 0;
  int rows = 0;
  std::string transport = "shared";
  bool shares_cores = false;
  void fields(ParamFields& f);
};

struct RuntimeSection {
  RuntimeSection();
  bool pin = true;
  std::string dtype = "auto";
  std::string adapter_store = "host";
  std::string registry;
  double temperature = 0;
  double top_p = 1;
  bool measure_parts = false;
  double max_arrival_lag_s = 0.1;
  double max_processor_loss = 0.1;
  HostLoraSection host_lora;
  // Every registered backend by its name, with its own settings. Copies share them.
  std::map<std::string, std::shared_ptr<BackendKind>> backends;
  void fields(ParamFields& f);
};

// One entry of `techniques:`.
struct TechniqueEntry {
  std::string technique;    // registry name
  std::string label;        // unique in the spec; names its curve
  std::string route;        // empty: the cluster's, else the technique's own
  ConfigNode route_params;  // `route_with:`
  ConfigNode params;        // `with:`
  ConfigNode engine;        // overrides engine settings, after the technique's own wishes
  SourceMark mark;
};

// One position of the sweep: the settings tree with the swept values set, and those values.
struct SweepPosition {
  ConfigNode settings;  // model, hardware, backend, cluster, lora, engine, workload, record
  ConfigNode with;      // swept `with.<parameter>` values, for the techniques that have them
  std::vector<std::pair<std::string, ConfigNode>> coordinates;
  std::vector<std::size_t> techniques;  // indices of those that run here, ascending
  std::string text() const;             // "skewness=4 rate=2", for people
};

struct Spec {
  std::string id;
  std::string path;
  std::string yaml;  // a text of its own: the file as written, or with what it extends
  std::string title;
  std::string figure;  // `figure:`, its own or of what it extends; else the last part of the id
  Library library{""};
  std::vector<TechniqueEntry> techniques;
  std::vector<std::int64_t> seeds;
  std::vector<SweepPosition> positions;  // at least one
  std::vector<std::string> swept;        // paths, in the order of the file
  bool has_quick = false;

  std::size_t point_count() const;  // position x technique x seed
};

// A spec as it stands, or with what its `quick:` says instead: the same figure in a minute. The
// quick form has an id of its own ("-quick" at the end), so its results never pass for the
// figure's.
enum class SpecForm : std::uint8_t { kFull, kQuick };

// Reads and checks a spec file. Throws SpecError with file, line, column and the nearest valid key.
Spec load_spec(const std::string& path, const std::string& experiments_dir,
               SpecForm form = SpecForm::kFull);
// The same of a spec whose text is at hand; `path` is where it was.
Spec parse_spec(const std::string& yaml, const std::string& path, const Library& library,
                SpecForm form = SpecForm::kFull);

// Puts a hardware profile in place of that of every position; "_profile" joins the id. Positions
// that differed in nothing but their hardware become one.
void use_profile(const std::string& profile, Spec* spec);

// The keys of a spec's top level and of a technique entry.
const std::vector<std::string>& spec_sections();
const std::vector<std::string>& technique_keys();

}  // namespace servelab

#endif  // SERVELAB_SPEC_SPEC_H_
