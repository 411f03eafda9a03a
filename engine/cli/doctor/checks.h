// The doctor's questions, a section each. All of them only look, and each answer that is not "ok"
// says what to do: what setting up, building or a run says by itself is not asked.
#ifndef SERVELAB_CLI_DOCTOR_CHECKS_H_
#define SERVELAB_CLI_DOCTOR_CHECKS_H_

#include <string>

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
  std::string results = "results";
  std::string data;   // folder of the real traces; empty: none
  bool full = false;  // also what takes longer than a second
};

Findings check_build(const Subject& subject);
Findings check_tools(const Subject& subject);
Findings check_python(const Subject& subject);
Findings check_machine(const Subject& subject);
Findings check_results(const Subject& subject);
Findings check_data(const Subject& subject);
Findings check_gpu(const Subject& subject);

std::vector<Section> check_all(const Subject& subject);

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_CHECKS_H_
