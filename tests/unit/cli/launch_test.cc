// Which rank a process is, by what launchers leave in its environment.
#include "engine/cli/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/error_of.h"

namespace servelab {
namespace {

using ::testing::HasSubstr;
using Table = std::map<std::string, std::string>;

std::optional<RankPlace> place(const Table& table, const std::string& at = "") {
  const Environment environment = [&table](const char* name) -> const char* {
    const auto found = table.find(name);
    return found == table.end() ? nullptr : found->second.c_str();
  };
  return find_rank_place(environment, at);
}

std::string refusal(const Table& table, const std::string& at = "") {
  return test::error_of([&] { place(table, at); });
}

Table with(Table table, const Table& more) {
  for (const auto& [name, value] : more) table[name] = value;
  return table;
}

Table without(Table table, const std::string& name) {
  table.erase(name);
  return table;
}

void expect_place(const std::optional<RankPlace>& got, int rank, int ranks, int local_rank,
                  const std::string& host, const std::string& launcher) {
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->rank, rank);
  EXPECT_EQ(got->ranks, ranks);
  EXPECT_EQ(got->local_rank, local_rank);
  EXPECT_EQ(got->at.host, host);
  EXPECT_EQ(got->launcher, launcher);
}

const Table kTorchrun = {{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node1"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Table kStep = {{"SLURM_JOB_ID", "4711"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_PROCID", "5"},
                     {"SLURM_NTASKS", "8"},
                     {"SLURM_STEP_NUM_TASKS", "8"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_STEP_NUM_NODES", "2"},
                     {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                     {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"}};
const Table kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "prterun-node1-17@1"}};
const Table kHydra = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}};

TEST(Launch, NobodyStartedIt) {
  EXPECT_FALSE(place({}).has_value());
  EXPECT_FALSE(place({{"MASTER_ADDR", "node1"}, {"WORLD_SIZE", "1"}}).has_value());
}

TEST(Launch, Torchrun) {
  const auto got = place(kTorchrun);
  expect_place(got, 3, 4, 1, "node1", "torchrun");
  EXPECT_EQ(got->at.port, 29501);  // its agent listens at the port that it gives
  EXPECT_EQ(place(without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE"))->at.port, 29500);
  EXPECT_EQ(place(kTorchrun, "node9:4000")->at.text(), "node9:4000");
}

TEST(Launch, ASlurmStep) {
  const auto got = place(kStep);
  expect_place(got, 5, 8, 1, "gpu03", "Slurm");
  EXPECT_GE(got->at.port, 15000);
  EXPECT_LT(got->at.port, 32000);
  EXPECT_EQ(place(with(kStep, {{"SLURM_PROCID", "0"}}))->at.port, got->at.port);
  EXPECT_NE(place(with(kStep, {{"SLURM_STEP_ID", "1"}}))->at.port, got->at.port);
  EXPECT_NE(place(with(kStep, {{"SLURM_JOB_ID", "4712"}}))->at.port, got->at.port);
  expect_place(place(with(kStep, {{"SLURM_STEP_NUM_NODES", "1"}})), 5, 8, 1, "127.0.0.1", "Slurm");
  expect_place(place(without(kStep, "SLURM_STEP_NODELIST")), 5, 8, 1, "10.0.0.9", "Slurm");
}

// The script of a job has a number among its tasks, as the first one, and is not one of them; so
// are the tasks of our own job arrays.
TEST(Launch, ASlurmBatchScriptIsNoRank) {
  EXPECT_FALSE(place({{"SLURM_JOB_ID", "4711"},
                      {"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_JOB_NODELIST", "gpu03"}})
                   .has_value());
  EXPECT_EQ(
      place(with(kStep,
                 {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}))
          ->ranks,
      1);
}

TEST(Launch, Mpi) {
  expect_place(place(kOpenMpi), 1, 2, 1, "127.0.0.1", "Open MPI");
  EXPECT_NE(place(kOpenMpi)->at.port,
            place(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-node1-18@1"}}))->at.port);
  const Table two_nodes = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_THAT(refusal(two_nodes), HasSubstr("Open MPI does not say where rank 0 is"));
  expect_place(place(two_nodes, "node1:4000"), 1, 2, 1, "node1", "Open MPI");
  expect_place(place(with(two_nodes, {{"SLURM_JOB_NODELIST", "gpu[7,9]"}})), 1, 2, 1, "gpu7",
               "Open MPI");
  expect_place(place(with(kHydra, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "4000"}})), 1, 2, 0,
               "node1", "PMI");
  const Table by_slurm = with(without(kHydra, "MPI_LOCALRANKID"), kStep);
  expect_place(place(by_slurm, "a:1"), 1, 2, 1, "a", "PMI");
}

// The innermost launcher counts: mpirun inside a Slurm job, torchrun inside a step.
TEST(Launch, TheInnermostLauncherCounts) {
  expect_place(place(with(kStep, kTorchrun)), 3, 4, 1, "node1", "torchrun");
  expect_place(place(with(kStep, kOpenMpi)), 1, 2, 1, "127.0.0.1", "Open MPI");
  // mpirun's daemons on other nodes are a Slurm step, and the one on its own node is not.
  const Table spread = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  const Table here = with(spread, {{"SLURM_JOB_ID", "4711"}, {"SLURM_JOB_NODELIST", "gpu[03-04]"}});
  const Table there = with(here, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", "gpu03"}});
  EXPECT_EQ(place(here)->at.text(), place(there)->at.text());
}

TEST(Launch, WhatIsHalfSetIsNamed) {
  EXPECT_EQ(refusal(without(kTorchrun, "WORLD_SIZE")),
            "the environment is half set: RANK is there and WORLD_SIZE is not");
  EXPECT_EQ(refusal({{"WORLD_SIZE", "2"}}),
            "the environment is half set: WORLD_SIZE is there and RANK is not");
  EXPECT_EQ(refusal(without(kTorchrun, "LOCAL_RANK")),
            "the environment is half set: RANK is there and LOCAL_RANK is not");
  EXPECT_EQ(refusal(without(kTorchrun, "MASTER_PORT")),
            "the environment is half set: RANK is there and MASTER_PORT is not");
  EXPECT_EQ(refusal(without(kOpenMpi, "OMPI_COMM_WORLD_RANK")),
            "the environment is half set: OMPI_COMM_WORLD_SIZE is there and OMPI_COMM_WORLD_RANK "
            "is not");
  EXPECT_EQ(refusal(without(kHydra, "MPI_LOCALRANKID")),
            "the environment is half set: PMI_RANK is there and MPI_LOCALRANKID is not");
}

TEST(Launch, WhatContradictsItselfIsNamed) {
  EXPECT_EQ(refusal(with(kTorchrun, {{"RANK", "4"}})),
            "RANK is '4' in the environment, and has to be a number from 0 to 3");
  EXPECT_EQ(refusal(with(kTorchrun, {{"RANK", "-1"}})),
            "RANK is '-1' in the environment, and has to be a number from 0 to 3");
  EXPECT_EQ(refusal(with(kTorchrun, {{"WORLD_SIZE", "two"}})),
            "WORLD_SIZE is 'two' in the environment, and has to be a number from 1 to 4096");
  EXPECT_EQ(refusal(with(kTorchrun, {{"MASTER_PORT", "0"}})),
            "MASTER_PORT is '0' in the environment, and has to be a number from 1 to 65534");
  EXPECT_EQ(refusal(with(kStep, {{"WORLD_SIZE", "4"}})),
            "the environment contradicts itself: WORLD_SIZE is 4 and SLURM_STEP_NUM_TASKS is 8");
  EXPECT_THAT(refusal(kTorchrun, "node1"), HasSubstr("--ranks-at is 'node1'"));
  EXPECT_THAT(refusal(kTorchrun, "node1:99999"), HasSubstr("has to be HOST:PORT"));
}

TEST(Launch, FirstHostOfASlurmList) {
  EXPECT_EQ(first_host("gpu03"), "gpu03");
  EXPECT_EQ(first_host("gpu03,gpu04"), "gpu03");
  EXPECT_EQ(first_host("gpu[03-07,12],login1"), "gpu03");
  EXPECT_EQ(first_host("gpu[12,3-7]"), "gpu12");
  EXPECT_EQ(first_host("rack[1-2]node[30-31]-ib,x"), "rack1node30-ib");
  EXPECT_EQ(first_host(""), "");
}

}  // namespace
}  // namespace servelab
