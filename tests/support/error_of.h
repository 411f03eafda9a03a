// The message of the SpecError that an action ends in; empty when it does not throw one.
#ifndef SERVELAB_TESTS_SUPPORT_ERROR_OF_H_
#define SERVELAB_TESTS_SUPPORT_ERROR_OF_H_

#include <string>

#include "engine/core/check.h"

namespace servelab::test {

template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const SpecError& error) {
    return error.what();
  }
  return "";
}

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_ERROR_OF_H_
