// A NORMAL engine under pressure: five drafts a step, recomputation after preemption, few blocks, chunks cut
// for cp 2.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/engine_types.hpp"

namespace deepinfer::generated {

struct EngineConfig {
  static constexpr EngineType kEngineType = EngineType::Normal;
  static constexpr std::int32_t kMaxNumSeqs = 5;
  static constexpr std::int32_t kMaxModelLen = 64;
  static constexpr std::int32_t kRuntimeMaxModelLen = 80;  // 64 + 5 + (5 + 1) + 5
  static constexpr std::int32_t kMaxNumBatchedTokens = 22;
  static constexpr std::int32_t kMaxNumPrompts = 3;
  static constexpr std::int32_t kPrefillMaxSumSeqlenK = 70;
  static constexpr std::int32_t kBlockSize = 4;
  static constexpr std::int32_t kNumBlocks = 34;
  static constexpr std::int32_t kBlocksPerSeq = 20;
  static constexpr std::int32_t kNumSlots = 7;
  static constexpr std::int32_t kHistory = 3;
  static constexpr std::int32_t kNextn = 5;
  static constexpr std::int32_t kMaxQ = 6;
  static constexpr std::int32_t kPrefillAttemptInterval = 3;
  static constexpr std::int32_t kPrefillAnyAttemptInterval = 5;
  static constexpr std::int32_t kPrefillBurst = 3;
  static constexpr std::int32_t kPrefillCacheUsageLimitNumerator = 4;
  static constexpr std::int32_t kPrefillCacheUsageLimitDenominator = 5;
  static constexpr bool kStopPreemptedRequest = false;
  static constexpr std::int32_t kCpSize = 2;
  static constexpr bool kPaddedDispatch = false;  // parallel.dispatch
  static constexpr std::int32_t kMaxTotalQ = 30;
  static constexpr std::array<std::int32_t, 7> kGraphSizes{1, 2, 4, 8, 16, 24, 30};
  static constexpr std::array<std::int32_t, 7> kGraphRows{
      3, 4, 6, 7, 7, 7, 7
  };  // min(size, 5) + ceil((8 - 1) / 6)
  static constexpr std::int32_t kMaxGraphRows = 7;
  static constexpr std::int64_t kSlotBytes = 256;
  static constexpr std::int64_t kBlockBytes = 128;
  static constexpr std::array<StateRegion, 1> kStateRegions{StateRegion{0, 256}};
  static constexpr std::string_view kPlanDigest = "speculative";
};

}  // namespace deepinfer::generated
