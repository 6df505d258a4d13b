// The groups that the vote check explores: shapes of an engine, and one exploration with its report.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string_view>

#include "engine/core.hpp"
#include "engine/engine_types.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_completion.hpp"
#include "engine/step_normal.hpp"
#include "engine/step_prompt.hpp"
#include "engine/verify_fixed.hpp"
#include "vote_explore.hpp"
#include "vote_moves.hpp"
#include "vote_rule.hpp"
#include "vote_world.hpp"

namespace votecheck {

// What distinguishes the groups. ALL points come every 2 decode steps, ANY points every 3.
struct Shape {
  deepinfer::EngineType type = deepinfer::EngineType::Normal;
  std::int32_t places = 1;
  std::int32_t nextn = 0;
  std::int32_t burst = 1;
  std::int32_t prompts = 2;  // of one prefill step
  std::int32_t budget = 8;   // tokens of one prefill step
  std::int32_t block_size = 8;
  std::int32_t usable_blocks = 4;
  bool tight = false;  // blocks run out while sequences decode
  bool stop_preempted = true;
  bool padded = false;  // dispatch
};

template <Shape S>
struct Config {
  static constexpr deepinfer::EngineType kEngineType = S.type;
  static constexpr bool kTight = S.tight;
  static constexpr std::int32_t kMaxNumSeqs = S.places;
  static constexpr std::int32_t kMaxModelLen = 6;
  static constexpr std::int32_t kHistory = 1;
  static constexpr std::int32_t kNextn = S.nextn;
  static constexpr std::int32_t kMaxQ = S.nextn + 1;
  static constexpr std::int32_t kRuntimeMaxModelLen = kMaxModelLen + 3 * S.nextn + 1;
  static constexpr std::int32_t kMaxNumBatchedTokens = S.budget;
  static constexpr std::int32_t kMaxNumPrompts = S.prompts;
  static constexpr std::int32_t kPrefillMaxSumSeqlenK = 16;
  static constexpr std::int32_t kBlockSize = S.block_size;
  static constexpr std::int32_t kBlocksPerSeq = (kRuntimeMaxModelLen + kBlockSize - 1) / kBlockSize;
  static constexpr std::int32_t kNumBlocks = 1 + S.usable_blocks;
  static constexpr std::int32_t kNumSlots = S.places + 2;
  static constexpr std::int32_t kPrefillAttemptInterval = 2;
  static constexpr std::int32_t kPrefillAnyAttemptInterval = 3;
  static constexpr std::int32_t kPrefillBurst = S.burst;
  static constexpr std::int32_t kPrefillCacheUsageLimitNumerator = 1;
  static constexpr std::int32_t kPrefillCacheUsageLimitDenominator = 1;
  static constexpr bool kStopPreemptedRequest = S.stop_preempted;
  static constexpr std::int32_t kCpSize = 1;
  static constexpr bool kPaddedDispatch = S.padded;
  static constexpr std::int32_t kMaxTotalQ = kMaxNumSeqs * kMaxQ;
  static constexpr std::array<std::int32_t, 1> kGraphSizes{kMaxTotalQ};
  static constexpr std::array<std::int32_t, 1> kGraphRows{2 * kMaxNumSeqs};
  static constexpr std::int32_t kMaxGraphRows = 2 * kMaxNumSeqs;
};

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

}  // namespace votecheck
