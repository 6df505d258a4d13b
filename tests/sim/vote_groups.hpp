// The groups that the vote check explores: shapes of an engine, and one exploration with its report.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <span>
#include <string_view>

#include "engine/core.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_completion.hpp"
#include "engine/step_normal.hpp"
#include "engine/step_prompt.hpp"
#include "engine/verify_fixed.hpp"
#include "shape.hpp"
#include "vote_explore.hpp"
#include "vote_moves.hpp"
#include "vote_rule.hpp"
#include "vote_world.hpp"

namespace votecheck {

using shapes::Config;
using shapes::Shape;

template <class Cfg>
using NormalGroup = World<
    Cfg,
    deepinfer::Core<Cfg, deepinfer::NormalStep, deepinfer::FixedVerification, deepinfer::OutputLengthOrder>,
    NormalRule>;

template <class Cfg>
using PromptGroup = World<Cfg, deepinfer::Core<Cfg, deepinfer::PromptStep>, ExchangeRule>;

template <class Cfg>
using CompletionGroup = World<
    Cfg,
    deepinfer::Core<
        Cfg, deepinfer::CompletionStep, deepinfer::FixedVerification, deepinfer::OutputLengthOrder>,
    ExchangeRule>;

// False if a rule is broken. Groups that `chosen` does not name are left out, unless it is empty.
template <class WorldType>
bool explore(const Options& options, std::span<char*> chosen) {
  const auto is_this = [&options](const char* name) { return std::string_view(name) == options.name; };
  if (!chosen.empty() && std::ranges::none_of(chosen, is_this)) return true;
  const auto start = std::chrono::steady_clock::now();
  Explorer<WorldType> explorer;
  bool clean = true;
  try {
    explorer.run(options);
  } catch (const std::exception& fault) {
    std::printf("%s: %s\n%s", options.name, fault.what(), explorer.trace().c_str());
    clean = false;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "%-12s %8zu states %9llu moves %8zu compared %6.2f s\n",
      options.name,
      explorer.states(),
      static_cast<unsigned long long>(explorer.transitions()),
      explorer.compared(),
      seconds
  );
  return clean;
}

// For a program that explores one kind of group: its exit status.
template <class WorldType>
int explore_all(std::initializer_list<Options> all) {
  const auto is_clean = [](const Options& options) { return explore<WorldType>(options, {}); };
  return std::ranges::all_of(all, is_clean) ? 0 : 1;
}

}  // namespace votecheck
