// Two kinds of failure. SL_CHECK guards our own invariants and is never compiled out: a broken
// invariant is a bug in servelab or in a technique, and the run stops there. SpecError is for
// anything that came from outside (a spec, a trace, a disk): one line that says where and how to
// mend it.
#ifndef SERVELAB_CORE_CHECK_H_
#define SERVELAB_CORE_CHECK_H_

#include <stdexcept>
#include <string>
#include <vector>

namespace servelab {

// A place in a file. line and column count from 1; 0 means "the whole file".
struct SourceMark {
  std::string file;
  int line = 0;
  int column = 0;
  std::string text() const;  // "file:line:column"
};

class SpecError : public std::runtime_error {
 public:
  explicit SpecError(const std::string& what) : std::runtime_error(what) {}
  SpecError(const SourceMark& where, const std::string& what)
      : std::runtime_error(where.text() + ": " + what) {}
};

// What a machine cannot do now, and may at another time: no result of a point.
class MachineError : public SpecError {
 public:
  using SpecError::SpecError;
};

// Thrown when an invariant of the serving core does not hold. `what()` starts with the invariant's
// number where it has one ("I4: ...").
class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// "did you mean 'slora'? known: dlora, peft, ..." for an unknown name. Empty `known` is allowed.
std::string suggest(const std::string& unknown, const std::vector<std::string>& known);

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace servelab

#define SL_CHECK(condition, message)                                       \
  do {                                                                     \
    if (__builtin_expect(!(condition), 0))                                 \
      ::servelab::check_failed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

#endif  // SERVELAB_CORE_CHECK_H_
