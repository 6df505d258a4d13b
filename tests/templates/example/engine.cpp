// An example of the generated translation unit: the factory and the table of constants.
#include <memory>

#include "engine/constants.hpp"
#include "engine/engine_api.hpp"
#include "engine/engine_instance.hpp"
#include "engine_config.hpp"
#include "scheduler.hpp"

namespace deepinfer {

using generated::EngineConfig;

std::unique_ptr<EngineApi> make_engine() { return std::make_unique<EngineInstance<generated::Scheduler>>(); }

const EngineInfo& engine_info() {
  static const EngineInfo info{
      EngineConfig::kPlanDigest,
      kFilesDigest,
      {
          constant("kEngineType", EngineConfig::kEngineType),
          constant("kMaxNumSeqs", EngineConfig::kMaxNumSeqs),
          constant("kMaxModelLen", EngineConfig::kMaxModelLen),
          constant("kRuntimeMaxModelLen", EngineConfig::kRuntimeMaxModelLen),
          constant("kMaxNumBatchedTokens", EngineConfig::kMaxNumBatchedTokens),
          constant("kMaxNumPrompts", EngineConfig::kMaxNumPrompts),
          constant("kPrefillMaxSumSeqlenK", EngineConfig::kPrefillMaxSumSeqlenK),
          constant("kBlockSize", EngineConfig::kBlockSize),
          constant("kNumBlocks", EngineConfig::kNumBlocks),
          constant("kBlocksPerSeq", EngineConfig::kBlocksPerSeq),
          constant("kNumSlots", EngineConfig::kNumSlots),
          constant("kHistory", EngineConfig::kHistory),
          constant("kNextn", EngineConfig::kNextn),
          constant("kMaxQ", EngineConfig::kMaxQ),
          constant("kPrefillAttemptInterval", EngineConfig::kPrefillAttemptInterval),
          constant("kPrefillAnyAttemptInterval", EngineConfig::kPrefillAnyAttemptInterval),
          constant("kPrefillBurst", EngineConfig::kPrefillBurst),
          constant("kPrefillCacheUsageLimitNumerator", EngineConfig::kPrefillCacheUsageLimitNumerator),
          constant("kPrefillCacheUsageLimitDenominator", EngineConfig::kPrefillCacheUsageLimitDenominator),
          constant("kStopPreemptedRequest", EngineConfig::kStopPreemptedRequest),
          constant("kCpSize", EngineConfig::kCpSize),
          constant("kMaxTotalQ", EngineConfig::kMaxTotalQ),
          constant("kGraphSizes", EngineConfig::kGraphSizes),
          constant("kGraphRows", EngineConfig::kGraphRows),
          constant("kMaxGraphRows", EngineConfig::kMaxGraphRows),
          constant("kSlotBytes", EngineConfig::kSlotBytes),
          constant("kBlockBytes", EngineConfig::kBlockBytes),
          constant("kStateRegions", EngineConfig::kStateRegions),
          constant("kPlanDigest", EngineConfig::kPlanDigest),
      },
  };
  return info;
}

}  // namespace deepinfer
