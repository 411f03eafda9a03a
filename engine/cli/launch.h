// Which of several processes this one is, as launchers tell it: by environment variables.
#ifndef SERVELAB_CLI_LAUNCH_H_
#define SERVELAB_CLI_LAUNCH_H_

#include <functional>
#include <optional>
#include <string>

#include "engine/backend/ranks/socket.h"

namespace servelab {

// getenv(), or a test's table: null for what is not set.
using Environment = std::function<const char*(const char* name)>;

struct RankPlace {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;     // among the processes of this machine
  ranks::RankAddress at;  // where rank 0 listens
  std::string launcher;   // "torchrun", "Open MPI", "PMI" or "Slurm"
};

// The innermost launcher's word, since one may have been started by another:
//   torchrun           RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
//   Open MPI (mpirun)  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   PMI (MPICH, Hydra, Intel MPI)  PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   Slurm (srun)       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST
// A Slurm batch script, which has SLURM_PROCID and SLURM_NTASKS, is not a step and so not a rank.
//
// The address is `at` ("HOST:PORT") where that is not empty. Otherwise the host is 127.0.0.1 where
// all ranks are on one machine, MASTER_ADDR, or the first node of the Slurm step or job, in that
// order; and the port MASTER_PORT, whoever set it (under torchrun the port after it, since
// torchrun's agent listens at that one), or one between 15,000 and 31,999 that follows from the
// job's number.
//
// MPICH's mpirun says nothing of its job: two at once on one machine need MASTER_PORT or `at`.
//
// None where no launcher has started this process. Throws SpecError, naming the variables, for an
// environment that is half set, contradicts itself, or leaves the address open.
std::optional<RankPlace> find_rank_place(const Environment& environment, const std::string& at);

// The first host of a Slurm list such as "gpu[03-07,12],login1": gpu03.
std::string first_host(const std::string& node_list);

// This process's environment.
const char* environment_variable(const char* name);

}  // namespace servelab

#endif  // SERVELAB_CLI_LAUNCH_H_
