// servelab doctor: looks at the machine and says what each missing thing costs.
#ifndef SERVELAB_CLI_DOCTOR_DOCTOR_CLI_H_
#define SERVELAB_CLI_DOCTOR_DOCTOR_CLI_H_

#include <string>

namespace CLI {
class App;
}

namespace servelab {

struct DoctorOptions {
  std::string results = "results";
  std::string data;  // empty: $SERVELAB_DATA
  bool full = false;
  bool json = false;
};

// Without --data, which it shares with other commands.
CLI::App* declare_doctor(CLI::App* app, DoctorOptions* options);

// Prints the report. The exit code: 0 when `make figures` has what it needs, else 1. Changes
// nothing, on the disk or elsewhere.
int doctor_command(const DoctorOptions& options);

}  // namespace servelab

#endif  // SERVELAB_CLI_DOCTOR_DOCTOR_CLI_H_
