#include "engine/cli/cli.h"

int main(int argc, char** argv) { return servelab::run_cli(argc, argv); }
