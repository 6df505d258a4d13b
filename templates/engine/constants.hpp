// Constants of a generated config in a form that the bindings can hand out: integers, strings, lists of
// integers.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/engine_types.hpp"

namespace deepinfer {

struct Constant {
  std::string_view name;
  std::variant<std::int64_t, std::string_view, std::vector<std::int64_t>> value;
};

template <std::integral T>
Constant constant(std::string_view name, T value) {
  return {name, static_cast<std::int64_t>(value)};
}

inline Constant constant(std::string_view name, std::string_view value) { return {name, value}; }

inline Constant constant(std::string_view name, EngineType value) { return {name, name_of(value)}; }

template <std::integral T, std::size_t N>
Constant constant(std::string_view name, const std::array<T, N>& values) {
  return {name, std::vector<std::int64_t>(values.begin(), values.end())};
}

// Regions are listed flat: offset, bytes, offset, bytes, ...
template <std::size_t N>
Constant constant(std::string_view name, const std::array<StateRegion, N>& regions) {
  std::vector<std::int64_t> flat;
  flat.reserve(2 * N);
  for (const StateRegion& region : regions) {
    flat.push_back(region.offset);
    flat.push_back(region.bytes);
  }
  return {name, flat};
}

}  // namespace deepinfer
