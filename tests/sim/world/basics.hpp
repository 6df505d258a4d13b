// What every part of the simulation uses: seeded numbers, hashes, and the report of a broken rule.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace deepinfer::sim {

// The finaliser of SplitMix64.
constexpr std::uint64_t scramble(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

constexpr std::uint64_t hash(std::uint64_t value) { return scramble(value + 0x9e3779b97f4a7c15U); }

template <class... Rest>
constexpr std::uint64_t hash(std::uint64_t first, std::uint64_t second, Rest... rest) {
  return hash(hash(first) ^ second, static_cast<std::uint64_t>(rest)...);
}

// SplitMix64; the same numbers on every platform, unlike the distributions of the standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(hash(seed)) {}
  std::uint64_t next() { return scramble(state_ += 0x9e3779b97f4a7c15U); }
  // 0 .. count - 1.
  std::int32_t below(std::int32_t count) {
    return static_cast<std::int32_t>((next() >> 32U) * static_cast<std::uint64_t>(count) >> 32U);
  }
  bool one_in(std::int32_t count) { return below(count) == 0; }

 private:
  std::uint64_t state_;
};

// A rule that does not hold. The rule's id is the start of the message, up to a colon.
class Violation : public std::logic_error {
 public:
  using std::logic_error::logic_error;
  static std::string rule_of(const std::string& message) { return message.substr(0, message.find(':')); }
};

template <class... Values>
[[noreturn]] void violate(const char* rule, const Values&... values) {
  std::ostringstream text;
  text << rule;
  ((text << ' ' << values), ...);
  throw Violation(text.str());
}

// The values are printed only when the rule is broken.
template <class... Values>
void require(bool holds, const char* rule, const Values&... values) {
  if (!holds) violate(rule, values...);
}

template <class Left, class Right, class... Values>
void require_equal(const Left& is, const Right& should_be, const char* rule, const Values&... values) {
  if (!(is == should_be)) violate(rule, values..., "is", is, "should be", should_be);
}

}  // namespace deepinfer::sim
