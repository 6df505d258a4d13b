// Generated configs in miniature: a Shape says what differs, Config spells out what an engine is compiled
// with.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "engine/engine_instance.hpp"
#include "world/limits.hpp"

namespace deepinfer::sim {

struct Shape {
  EngineType type = EngineType::Normal;
  std::int32_t seqs = 5;
  std::int32_t model_len = 48;
  std::int32_t nextn = 0;
  std::int32_t batched_tokens = 32;
  std::int32_t prompts = 3;
  std::int32_t sum_k = 60;
  std::int32_t block_size = 4;
  std::int32_t spare_blocks = 12;  // beside those of one longest sequence
  std::int32_t spare_slots = 1;    // beside one for each sequence
  std::int32_t all_interval = 3;
  std::int32_t any_interval = 5;
  std::int32_t burst = 2;
  std::int32_t usage_percent = 90;
  bool stop_preempted = true;
  std::int32_t cp = 1;
  bool padded = false;
};

template <Shape S>
struct Config {
  static constexpr EngineType kEngineType = S.type;
  static constexpr std::int32_t kMaxNumSeqs = S.seqs;
  static constexpr std::int32_t kMaxModelLen = S.model_len;
  static constexpr std::int32_t kHistory = 3;
  static constexpr std::int32_t kNextn = S.nextn;
  static constexpr std::int32_t kMaxQ = S.nextn + 1;
  static constexpr std::int32_t kRuntimeMaxModelLen = S.model_len + 3 * S.nextn + 1;
  static constexpr std::int32_t kMaxNumBatchedTokens = S.batched_tokens;
  static constexpr std::int32_t kMaxNumPrompts = S.prompts;
  static constexpr std::int32_t kPrefillMaxSumSeqlenK = S.sum_k;
  static constexpr std::int32_t kBlockSize = S.block_size;
  static constexpr std::int32_t kBlocksPerSeq = (kRuntimeMaxModelLen + kBlockSize - 1) / kBlockSize;
  static constexpr std::int32_t kNumBlocks = kBlocksPerSeq + 1 + S.spare_blocks;
  static constexpr std::int32_t kNumSlots = S.seqs + 1 + S.spare_slots;
  static constexpr std::int32_t kPrefillAttemptInterval = S.all_interval;
  static constexpr std::int32_t kPrefillAnyAttemptInterval = S.any_interval;
  static constexpr std::int32_t kPrefillBurst = S.burst;
  static constexpr std::int32_t kPrefillCacheUsageLimitNumerator = S.usage_percent;
  static constexpr std::int32_t kPrefillCacheUsageLimitDenominator = 100;
  static constexpr bool kStopPreemptedRequest = S.stop_preempted;
  static constexpr std::int32_t kCpSize = S.cp;
  static constexpr bool kPaddedDispatch = S.padded;
  static constexpr std::int32_t kMaxTotalQ = S.seqs * kMaxQ;
  static constexpr std::int64_t kPriorSurvival = 45875;  // nearest even of 0.7 * 65535
  static constexpr std::int64_t kMinGainNumerator = 2;
  static constexpr std::int64_t kMinGainDenominator = 100;

  // 1, 2, 4, then every fourth; the largest holds everything.
  static constexpr std::int32_t size_at(std::int32_t index) {
    const std::int32_t size = index < 2 ? index + 1 : 4 * (index - 1);
    return std::min(size, kMaxTotalQ);
  }
  static constexpr std::int32_t kCount = [] {
    std::int32_t count = 1;
    while (size_at(count - 1) < kMaxTotalQ) ++count;
    return count;
  }();
  using Table = std::array<std::int32_t, static_cast<std::size_t>(kCount)>;
  static constexpr Table kGraphSizes = [] {
    Table sizes{};
    for (std::int32_t i = 0; i < kCount; ++i) sizes[static_cast<std::size_t>(i)] = size_at(i);
    return sizes;
  }();
  // Real rows of one token each leave the most padding. With padded dispatch a step may be much smaller than
  // its graph.
  static constexpr Table kGraphRows = [] {
    Table rows{};
    for (std::size_t i = 0; i < kGraphSizes.size(); ++i) {
      const std::int32_t least = S.padded || i == 0 ? 0 : kGraphSizes[i - 1] + 1;
      for (std::int32_t total = least; total <= kGraphSizes[i]; ++total) {
        const std::int32_t padding = kGraphSizes[i] - total;
        rows[i] = std::max(rows[i], std::min(total, S.seqs) + (padding + kMaxQ - 1) / kMaxQ);
      }
    }
    return rows;
  }();
  static constexpr std::int32_t kMaxGraphRows = *std::max_element(kGraphRows.begin(), kGraphRows.end());
};

template <class Cfg, class Scheduler, bool Varlen>
Setup setup(std::string name, std::int32_t ranks = 0) {
  Limits limits;
  limits.type = Cfg::kEngineType;
  limits.max_num_seqs = Cfg::kMaxNumSeqs;
  limits.max_model_len = Cfg::kMaxModelLen;
  limits.max_num_batched_tokens = Cfg::kMaxNumBatchedTokens;
  limits.max_num_prompts = Cfg::kMaxNumPrompts;
  limits.max_sum_k = Cfg::kPrefillMaxSumSeqlenK;
  limits.block_size = Cfg::kBlockSize;
  limits.num_blocks = Cfg::kNumBlocks;
  limits.blocks_per_seq = Cfg::kBlocksPerSeq;
  limits.num_slots = Cfg::kNumSlots;
  limits.history = Cfg::kHistory;
  limits.nextn = Cfg::kNextn;
  limits.max_q = Cfg::kMaxQ;
  limits.all_interval = Cfg::kPrefillAttemptInterval;
  limits.any_interval = Cfg::kPrefillAnyAttemptInterval;
  limits.burst = Cfg::kPrefillBurst;
  limits.usage_numerator = Cfg::kPrefillCacheUsageLimitNumerator;
  limits.usage_denominator = Cfg::kPrefillCacheUsageLimitDenominator;
  limits.stop_preempted = Cfg::kStopPreemptedRequest;
  limits.cp = Cfg::kCpSize;
  limits.padded = Cfg::kPaddedDispatch;
  limits.varlen = Varlen;
  limits.prior = static_cast<std::int32_t>(Cfg::kPriorSurvival);
  limits.min_gain =
      static_cast<double>(Cfg::kMinGainNumerator) / static_cast<double>(Cfg::kMinGainDenominator);
  limits.graph_sizes.assign(Cfg::kGraphSizes.begin(), Cfg::kGraphSizes.end());
  limits.graph_rows.assign(Cfg::kGraphRows.begin(), Cfg::kGraphRows.end());
  return {std::move(name), ranks, std::move(limits), [] {
            return std::unique_ptr<EngineApi>(std::make_unique<EngineInstance<Scheduler>>());
          }};
}

}  // namespace deepinfer::sim
