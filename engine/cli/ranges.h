// Checks of numbers on the command line.
#ifndef SERVELAB_CLI_RANGES_H_
#define SERVELAB_CLI_RANGES_H_

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

namespace servelab {

// A number from `low` to `high`. CLI::Range lets "nan" pass, which is neither below nor above.
inline CLI::Validator number_in(double low, double high) {
  CLI::Range range(low, high);
  return CLI::Validator(
      [range](std::string& text) {
        double value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        const bool is_number = error == std::errc() && stop == end && value == value;
        return is_number ? range(text) : "Value " + text + " is not a number";
      },
      range.get_description());
}

// A seed: a whole number that is not negative. CLI11 turns "-1" into the largest one.
inline CLI::Validator seed() {
  return CLI::Validator(
      [](std::string& text) {
        const bool is_whole =
            !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return is_whole ? std::string() : "Seed " + text + " is not a whole number from 0";
      },
      "SEED");
}

}  // namespace servelab

#endif  // SERVELAB_CLI_RANGES_H_
