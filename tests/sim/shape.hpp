// Engine configs in miniature: a Shape says what differs, Config spells out what an engine is compiled with.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/engine_types.hpp"

namespace shapes {

struct Shape {
  deepinfer::EngineType type = deepinfer::EngineType::Normal;
  std::int32_t places = 1;
  std::int32_t nextn = 0;
  std::int32_t burst = 1;
  std::int32_t prompts = 2;    // of one prefill step
  std::int32_t budget = 8;     // tokens of one prefill step
  std::int32_t model_len = 6;  // tokens
  std::int32_t block_size = 8;
  std::int32_t usable_blocks = 4;
  std::int32_t cp = 1;
  bool tight = false;  // blocks run out while sequences decode
  bool stop_preempted = true;
  bool padded = false;  // dispatch
};

// ALL points come every 2 decode steps, ANY points every 3. Graphs hold 1, a half and all of the tokens.
template <Shape S>
struct Config {
  static constexpr deepinfer::EngineType kEngineType = S.type;
  static constexpr bool kTight = S.tight;
  static constexpr std::int32_t kMaxNumSeqs = S.places;
  static constexpr std::int32_t kMaxModelLen = S.model_len;
  static constexpr std::int32_t kHistory = 2;
  static constexpr std::int32_t kNextn = S.nextn;
  static constexpr std::int32_t kMaxQ = S.nextn + 1;
  static constexpr std::int32_t kRuntimeMaxModelLen = kMaxModelLen + 3 * S.nextn + 1;
  static constexpr std::int32_t kMaxNumBatchedTokens = S.budget;
  static constexpr std::int32_t kMaxNumPrompts = S.prompts;
  static constexpr std::int32_t kPrefillMaxSumSeqlenK = S.model_len + S.budget;
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
  static constexpr std::int32_t kCpSize = S.cp;
  static constexpr bool kPaddedDispatch = S.padded;
  static constexpr std::uint16_t kPriorSurvival = 52'428;
  static constexpr std::int64_t kMinGainNumerator = 1;
  static constexpr std::int64_t kMinGainDenominator = 100;
  static constexpr std::int32_t kMaxTotalQ = kMaxNumSeqs * kMaxQ;
  static constexpr std::size_t kGraphs = kMaxTotalQ > 2 ? 3 : static_cast<std::size_t>(kMaxTotalQ);
  static constexpr std::array<std::int32_t, kGraphs> kGraphSizes = [] {
    std::array<std::int32_t, kGraphs> sizes{};
    for (std::size_t i = 0; i < kGraphs; ++i) sizes[i] = i == 0 ? 1 : (kMaxTotalQ + 1) / 2;
    sizes.back() = kMaxTotalQ;
    return sizes;
  }();
  static constexpr std::int32_t kMaxGraphRows = kMaxNumSeqs + kMaxTotalQ;
  static constexpr std::array<std::int32_t, kGraphs> kGraphRows = [] {
    std::array<std::int32_t, kGraphs> rows{};
    rows.fill(kMaxGraphRows);
    return rows;
  }();
};

}  // namespace shapes
