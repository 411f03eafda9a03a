#include "engine/cli/doctor/doctor_cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "engine/cli/doctor/checks.h"
#include "engine/cli/source_tree.h"

namespace servelab {
namespace doctor {

std::vector<Section> check_all(const Subject& subject) {
  return {{"build", check_build(subject)},     {"tools", check_tools(subject)},
          {"python", check_python(subject)},   {"machine", check_machine(subject)},
          {"results", check_results(subject)}, {"data", check_data(subject)},
          {"gpu", check_gpu(subject)}};
}

}  // namespace doctor

CLI::App* declare_doctor(CLI::App* app, DoctorOptions* options) {
  CLI::App* command = app->add_subcommand(
      "doctor", "look at this machine: what is missing, what that costs, and what mends it");
  command->add_option("--out", options->results, "where results go")->capture_default_str();
  command->add_flag("--full", options->full, "also read every trace, and wait for slow drivers");
  command->add_flag("--json", options->json, "for programs");
  return command;
}

int doctor_command(const DoctorOptions& options) {
  const doctor::Machine machine;
  std::error_code ignored;
  doctor::Subject subject{machine};
  subject.tree = find_source_tree();
  subject.program = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  subject.build = doctor::build_facts();
  subject.results = options.results;
  subject.data = options.data.empty() ? machine.variable("SERVELAB_DATA") : options.data;
  subject.full = options.full;
  const std::vector<doctor::Section> sections = doctor::check_all(subject);
  fmt::print("{}", options.json ? doctor::json_of(sections) : doctor::text_of(sections));
  return doctor::count(sections, doctor::Level::kProblem) == 0 ? 0 : 1;
}

}  // namespace servelab
