#include "engine/cli/launch.h"

#include <charconv>
#include <cstdlib>

#include "engine/backend/ranks/messages.h"
#include "engine/core/check.h"
#include "engine/core/digest.h"

namespace servelab {
namespace {

constexpr int kFirstPort = 15'000;  // below those that Linux gives to connections
constexpr int kPorts = 17'000;
constexpr int kLastPort = 65'535;

// The variables that a launcher sets for each process.
struct Launcher {
  const char* name;
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* other_local_rank;  // where the first one is not set; null: none
  const char* local_ranks;       // equal to `ranks` where all are on one machine; null: none
};

constexpr Launcher kTorchrun = {"torchrun",   "RANK",  "WORLD_SIZE",
                                "LOCAL_RANK", nullptr, "LOCAL_WORLD_SIZE"};
constexpr Launcher kOpenMpi = {
    "Open MPI", "OMPI_COMM_WORLD_RANK",      "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    nullptr,    "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Launcher kPmi = {"PMI",           "PMI_RANK",       "PMI_SIZE", "MPI_LOCALRANKID",
                           "SLURM_LOCALID", "MPI_LOCALNRANKS"};
constexpr Launcher kSlurm = {"Slurm",         "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID", nullptr,        nullptr};

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  std::string text(const char* name) const {
    const char* const value = environment_(name);
    return value == nullptr ? "" : value;
  }
  bool has(const char* name) const { return !text(name).empty(); }
  int number(const char* name, int least, int most) const {
    const std::string value = text(name);
    int number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < least ||
        number > most) {
      throw SpecError(std::string(name) + " is " + in_quotes(value) +
                      " in the environment, and has to be a number from " + std::to_string(least) +
                      " to " + std::to_string(most));
    }
    return number;
  }

 private:
  static std::string in_quotes(const std::string& value) { return "'" + value + "'"; }
  const Environment& environment_;
};

void require(const Variables& variables, const char* name, const char* because) {
  if (variables.has(name)) return;
  throw SpecError(std::string("the environment is half set: ") + because + " is there and " + name +
                  " is not");
}

const Launcher* find_launcher(const Variables& variables) {
  if (variables.has(kTorchrun.rank) || variables.has(kTorchrun.local_rank)) return &kTorchrun;
  for (const Launcher* each : {&kOpenMpi, &kPmi}) {
    if (variables.has(each->rank) || variables.has(each->ranks)) return each;
  }
  // A batch script has a SLURM_PROCID and no step; srun within another allocation sets both.
  if (variables.has(kSlurm.rank) && variables.has(kSlurm.ranks)) return &kSlurm;
  return nullptr;
}

RankPlace place_of(const Variables& variables, const Launcher& launcher) {
  const char* const there = variables.has(launcher.rank)    ? launcher.rank
                            : variables.has(launcher.ranks) ? launcher.ranks
                                                            : launcher.local_rank;
  require(variables, launcher.rank, there);
  require(variables, launcher.ranks, there);
  RankPlace place;
  place.launcher = launcher.name;
  place.ranks = variables.number(launcher.ranks, 1, ranks::kMostRanks);
  place.rank = variables.number(launcher.rank, 0, place.ranks - 1);
  const bool has_other =
      launcher.other_local_rank != nullptr && variables.has(launcher.other_local_rank);
  if (has_other && !variables.has(launcher.local_rank)) {
    place.local_rank = variables.number(launcher.other_local_rank, 0, place.ranks - 1);
  } else {
    require(variables, launcher.local_rank, launcher.rank);
    place.local_rank = variables.number(launcher.local_rank, 0, place.ranks - 1);
  }
  return place;
}

bool is_one_machine(const Variables& variables, const Launcher& launcher, const RankPlace& place) {
  if (place.ranks == 1) return true;
  if (&launcher == &kSlurm) {
    for (const char* nodes : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}) {
      if (variables.has(nodes)) return variables.text(nodes) == "1";
    }
    return false;
  }
  return launcher.local_ranks != nullptr &&
         variables.text(launcher.local_ranks) == std::to_string(place.ranks);
}

// The same for all processes of a job, and another one for the next job.
int port_of(const Variables& variables, const Launcher& launcher) {
  // mpirun starts daemons on the other nodes as a Slurm step and not on its own: the step's number
  // is for srun alone.
  std::string job = variables.text("SLURM_JOB_ID") + ";";
  if (&launcher == &kSlurm) {
    job += variables.text("SLURM_STEP_ID");
  } else {
    job += variables.text("PMIX_NAMESPACE") + ";" + variables.text("OMPI_MCA_ess_base_jobid");
  }
  StreamHash hash;
  for (const char letter : job) hash.add(static_cast<unsigned char>(letter));
  return kFirstPort + static_cast<int>(hash.value() % kPorts);
}

std::string first_node(const Variables& variables) {
  for (const char* list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (variables.has(list)) return first_host(variables.text(list));
  }
  return variables.text("SLURM_LAUNCH_NODE_IPADDR");
}

ranks::RankAddress parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  int port = 0;
  if (colon != std::string::npos && colon > 0) {
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
    if (parsed.ec != std::errc() || parsed.ptr != end) port = 0;
  }
  if (port < 1 || port > kLastPort) {
    throw SpecError("--ranks-at is '" + text + "', and has to be HOST:PORT, such as node1:29600");
  }
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {  // IPv6
    host = host.substr(1, host.size() - 2);
  }
  return {host, port};
}

ranks::RankAddress address_of(const Variables& variables, const Launcher& launcher,
                              const RankPlace& place, const std::string& at) {
  if (!at.empty()) return parse_address(at);
  if (&launcher == &kTorchrun) {
    require(variables, "MASTER_ADDR", launcher.rank);
    require(variables, "MASTER_PORT", launcher.rank);
  }
  ranks::RankAddress address{variables.text("MASTER_ADDR"), 0};
  if (is_one_machine(variables, launcher, place)) address.host = "127.0.0.1";
  if (variables.has("MASTER_PORT")) {
    require(variables, "MASTER_ADDR", "MASTER_PORT");
    address.port = variables.number("MASTER_PORT", 1, kLastPort - 1);
    if (variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++address.port;
  } else {
    address.port = port_of(variables, launcher);
  }
  if (address.host.empty()) address.host = first_node(variables);
  if (address.host.empty()) {
    throw SpecError(std::string(launcher.name) +
                    " does not say where rank 0 is, and the ranks are on several machines; give "
                    "all of them --ranks-at HOST:PORT, with the host that rank 0 runs on");
  }
  return address;
}

}  // namespace

std::string first_host(const std::string& node_list) {
  std::string host;
  bool inside = false;
  bool taking = true;
  for (const char letter : node_list) {
    if (letter == '[') {
      inside = true;
    } else if (letter == ']') {
      inside = false;
      taking = true;
    } else if (inside && (letter == '-' || letter == ',')) {
      taking = false;
    } else if (!inside && letter == ',') {
      break;
    } else if (taking) {
      host += letter;
    }
  }
  return host;
}

const char* environment_variable(const char* name) { return std::getenv(name); }

std::optional<RankPlace> find_rank_place(const Environment& environment, const std::string& at) {
  const Variables variables(environment);
  const Launcher* const launcher = find_launcher(variables);
  if (launcher == nullptr) {
    // Often set for all processes by hand; a number for this one has to come from somewhere.
    if (variables.has(kTorchrun.ranks) && variables.text(kTorchrun.ranks) != "1") {
      require(variables, kTorchrun.rank, kTorchrun.ranks);
    }
    return std::nullopt;
  }
  RankPlace place = place_of(variables, *launcher);
  if (launcher != &kTorchrun && variables.has(kTorchrun.ranks) &&
      variables.number(kTorchrun.ranks, 1, ranks::kMostRanks) != place.ranks) {
    throw SpecError("the environment contradicts itself: WORLD_SIZE is " +
                    variables.text(kTorchrun.ranks) + " and " + launcher->ranks + " is " +
                    std::to_string(place.ranks));
  }
  if (place.ranks > 1 || !at.empty()) {
    place.at = address_of(variables, *launcher, place, at);
  }
  return place;
}

}  // namespace servelab
