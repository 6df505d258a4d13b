// An example of the generated config: every constant that the engine headers read, for a tiny NORMAL engine.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/engine_types.hpp"

namespace deepinfer::generated {

struct EngineConfig {
  static constexpr EngineType kEngineType = EngineType::Normal;   // engine.type
  static constexpr std::int32_t kMaxNumSeqs = 4;                  // limits.max_num_seqs
  static constexpr std::int32_t kMaxModelLen = 96;                // limits.max_model_len
  static constexpr std::int32_t kRuntimeMaxModelLen = 97;         // 96 + 0 + (0 + 1) + 0
  static constexpr std::int32_t kMaxNumBatchedTokens = 64;        // limits.max_num_batched_tokens
  static constexpr std::int32_t kMaxNumPrompts = 3;               // limits.max_num_prompts
  static constexpr std::int32_t kPrefillMaxSumSeqlenK = 128;      // limits.prefill_max_sum_seqlen_k
  static constexpr std::int32_t kBlockSize = 8;                   // kv.block_size
  static constexpr std::int32_t kNumBlocks = 25;                  // kv.num_blocks, with block 0
  static constexpr std::int32_t kBlocksPerSeq = 13;               // ceil(97 / 8)
  static constexpr std::int32_t kNumSlots = 6;                    // state.num_slots, with slot 0
  static constexpr std::int32_t kHistory = 3;                     // engram.history_tokens
  static constexpr std::int32_t kNextn = 0;                       // speculative.nextn
  static constexpr std::int32_t kMaxQ = 1;                        // 0 + 1
  static constexpr std::int32_t kPrefillAttemptInterval = 7;      // schedule.prefill_attempt_interval
  static constexpr std::int32_t kPrefillAnyAttemptInterval = 10;  // schedule.prefill_any_attempt_interval
  static constexpr std::int32_t kPrefillBurst = 2;                // schedule.prefill_burst
  static constexpr std::int32_t kPrefillCacheUsageLimitNumerator = 9;  // schedule.prefill_cache_usage_limit
  static constexpr std::int32_t kPrefillCacheUsageLimitDenominator = 10;
  static constexpr bool kStopPreemptedRequest = true;  // schedule.stop_preempted_request
  static constexpr std::int32_t kCpSize = 1;           // parallel.cp
  static constexpr bool kPaddedDispatch = false;       // parallel.dispatch
  static constexpr std::int32_t kMaxTotalQ = 4;        // graphs.max_total_q
  static constexpr std::array<std::int32_t, 3> kGraphSizes{1, 2, 4};
  static constexpr std::array<std::int32_t, 3> kGraphRows{8, 9, 11};  // min(size, 4) + ceil((8 - 1) / 1)
  static constexpr std::int32_t kMaxGraphRows = 11;  // max of kGraphRows, 0 when there is none
  static constexpr std::int64_t kSlotBytes = 256;    // state.slot_bytes
  static constexpr std::int64_t kBlockBytes = 128;   // kv.block_bytes
  static constexpr std::array<StateRegion, 2> kStateRegions{StateRegion{0, 128}, StateRegion{128, 128}};
  static constexpr std::string_view kPlanDigest = "0123456789abcdef";  // plan_digest, 64 hex digits
};

// The renderer adds one static_assert per invariant of the Plan.
static_assert(EngineConfig::kMaxQ == EngineConfig::kNextn + 1);
static_assert(EngineConfig::kGraphSizes.back() == EngineConfig::kMaxTotalQ);

}  // namespace deepinfer::generated
