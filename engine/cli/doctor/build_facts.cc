// CMakeLists.txt defines the SERVELAB_BUILD_ names for this file alone.
#include "engine/cli/doctor/build_facts.h"

#include <sstream>

namespace servelab::doctor {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

bool is_optimised() {
#if defined(__OPTIMIZE__)
  return true;
#else
  return false;
#endif
}

bool is_x86() {
#if defined(__x86_64__)
  return true;
#else
  return false;
#endif
}

std::string sanitizers() {
#if defined(__SANITIZE_ADDRESS__)
  return "address";
#elif defined(__SANITIZE_THREAD__)
  return "thread";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  return "address";
#elif __has_feature(thread_sanitizer)
  return "thread";
#endif
#endif
  return "";
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

}  // namespace

BuildFacts build_facts() {
  BuildFacts facts;
  facts.compiler = compiler();
  facts.type = SERVELAB_BUILD_TYPE;
  facts.flags = SERVELAB_BUILD_FLAGS;
  facts.sanitizers = sanitizers();
  facts.optimised = is_optimised();
  facts.x86 = is_x86();
  facts.cuda_targets = words_of(SERVELAB_BUILD_CUDA_TARGETS);
  return facts;
}

}  // namespace servelab::doctor
