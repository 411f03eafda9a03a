// libFuzzer: whatever lines `servelab score` is sent, each is answered by JSON or not at all, and
// each bad one by an error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "engine/cli/score.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace servelab;
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  std::ostringstream out;
  Scorer scorer(RankModel{RankLoad::kSum, {0.002, 30}, {0.002, 30}}, {.slo_ms = 36});
  const std::size_t bad = score_lines(&scorer, in, out);
  std::size_t errors = 0;
  std::istringstream answers(out.str());
  for (std::string line; std::getline(answers, line);) {
    const auto answer = nlohmann::json::parse(line, nullptr, false);
    if (!answer.is_object()) std::abort();
    errors += answer.contains("error") ? 1 : 0;
    if (answer.contains("server") && !answer["costs_ms"].contains(answer["server"])) std::abort();
  }
  if (errors != bad) std::abort();
  return 0;
}
