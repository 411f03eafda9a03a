// The command line: servelab run, check, list, show, spec, version.
#ifndef SERVELAB_CLI_CLI_H_
#define SERVELAB_CLI_CLI_H_

namespace servelab {

// Returns the exit code: 0, 1 when points failed or results could not be written, 2 for bad input,
// 128 + n after signal n. Every error is one line on stderr; nothing is thrown.
int run_cli(int argc, char** argv);

}  // namespace servelab

#endif  // SERVELAB_CLI_CLI_H_
