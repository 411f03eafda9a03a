// The doctor's questions, a section each. All of them only look.
#ifndef SERVELAB_CLI_DOCTOR_CHECKS_H_
#define SERVELAB_CLI_DOCTOR_CHECKS_H_

#include <string>
#include <vector>

#include "engine/cli/doctor/build_facts.h"
#include "engine/cli/doctor/finding.h"
#include "engine/cli/doctor/machine.h"

namespace servelab::doctor {

// What is looked at. Folders are as the user named them.
struct Subject {
  explicit Subject(const Machine& on) : machine(on) {}

  const Machine& machine;
  std::string tree;     // servelab's source tree; empty when there is none
  std::string program;  // this program's file; empty when unknown
  BuildFacts build;     // of this program
  std::string experiments = "experiments";
  std::string results = "results";
  std::string data;   // folder of the real traces; empty: none
  bool full = false;  // also what takes longer than a second
};

using Findings = std::vector<Finding>;

Findings check_build(const Subject& subject);
Findings check_tools(const Subject& subject);
Findings check_processor(const Subject& subject);
Findings check_memory(const Subject& subject);
Findings check_disk(const Subject& subject);
Findings check_gpu(const Subject& subject);
Findings check_data(const Subject& subject);
Findings check_python(const Subject& subject);
Findings check_extras(const Subject& subject);  // of tests
Findings check_results(const Subject& subject);

std::vector<Section> check_all(const Subject& subject);

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_CHECKS_H_
