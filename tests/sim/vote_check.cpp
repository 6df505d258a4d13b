// Every state of small groups of schedulers: up to three ranks, arrivals and aborts before a vote and between its
// rounds. Each decision is compared with the rules of docs/scheduler.md. Prints the number of states for each group;
// a broken rule ends the program with status 1, its name and a shortest way to it. Usage: vote_check [GROUP ...]
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "engine/core.hpp"
#include "engine/engine_types.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_normal.hpp"
#include "engine/verify_fixed.hpp"
#include "vote_explore.hpp"
#include "vote_rule.hpp"
#include "vote_world.hpp"

namespace {

using votecheck::Options;

// What distinguishes the groups. ALL points come every 2 decode steps, ANY points every 3.
struct Shape {
  std::int32_t places = 1;
  std::int32_t nextn = 0;
  std::int32_t burst = 1;
  std::int32_t prompts = 2;  // of one prefill step
  std::int32_t budget = 8;   // tokens of one prefill step
  std::int32_t block_size = 8;
  std::int32_t usable_blocks = 4;
  bool tight = false;  // blocks run out while sequences decode
  bool stop_preempted = true;
};

template <Shape S>
struct Config {
  static constexpr deepinfer::EngineType kEngineType = deepinfer::EngineType::Normal;
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
  static constexpr std::int32_t kMaxTotalQ = kMaxNumSeqs * kMaxQ;
  static constexpr std::array<std::int32_t, 1> kGraphSizes{kMaxTotalQ};
  static constexpr std::array<std::int32_t, 1> kGraphRows{2 * kMaxNumSeqs};
  static constexpr std::int32_t kMaxGraphRows = 2 * kMaxNumSeqs;
};

template <class Cfg>
using Normal = votecheck::World<
    Cfg, deepinfer::Core<Cfg, deepinfer::NormalStep, deepinfer::FixedVerification, deepinfer::OutputLengthOrder>,
    votecheck::NormalRule>;

template <class World>
bool explore(const Options& options, int argc, char** argv) {
  bool chosen = argc < 2;
  for (int i = 1; i < argc; ++i) chosen = chosen || std::strcmp(argv[i], options.name) == 0;
  if (!chosen) return true;
  const auto start = std::chrono::steady_clock::now();
  votecheck::Explorer<World> explorer;
  bool clean = true;
  try {
    explorer.run(options);
  } catch (const std::exception& fault) {
    std::printf("%s: %s\n%s", options.name, fault.what(), explorer.trace().c_str());
    clean = false;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "%-12s %8zu states %9llu moves %8zu compared %6.2f s\n", options.name, explorer.states(),
      static_cast<unsigned long long>(explorer.transitions()), explorer.compared(), seconds
  );
  return clean;
}

}  // namespace

int main(int argc, char** argv) {
  bool clean = true;
  const auto group = [&]<Shape S>(const Options& options) {
    clean = clean && explore<Normal<Config<S>>>(options, argc, argv);
  };
  const auto one_place = [&](const Options& o) { group.operator()<Shape{}>(o); };
  const auto bursts = [&](const Options& o) { group.operator()<Shape{.places = 2, .burst = 2, .prompts = 1}>(o); };
  const auto chunks = [&](const Options& o) { group.operator()<Shape{.places = 2, .nextn = 1, .budget = 2}>(o); };
  const auto tight = [&](const Options& o) {
    group.operator()<Shape{.places = 2, .block_size = 1, .usable_blocks = 8, .tight = true}>(o);
  };
  const auto recompute = [&](const Options& o) {
    group.operator()<Shape{.places = 2, .block_size = 1, .usable_blocks = 8, .tight = true, .stop_preempted = false}>(o);
  };

  one_place({.name = "1-all", .ranks = 1, .outstanding = 2, .aborts = 2, .pendings = 2, .faults = 1, .stops = 2});
  chunks({.name = "1-chunks", .ranks = 1, .prompt = 3, .outstanding = 2, .aborts = 2, .stops = 2, .early = true});
  tight({.name = "1-tight", .ranks = 1, .outputs = 5, .outstanding = 3, .aborts = 2, .early = true});
  recompute({.name = "1-recompute", .ranks = 1, .outputs = 5, .outstanding = 3, .aborts = 2, .early = true});

  one_place({.name = "2-bounded", .ranks = 2});
  one_place({.name = "2-endless", .ranks = 2, .outstanding = 2});
  one_place({.name = "2-early", .ranks = 2, .outstanding = 2, .deferred = true, .early = true});
  one_place({.name = "2-aborts", .ranks = 2, .outstanding = 2, .aborts = 1, .deferred = true});
  one_place({.name = "2-faults", .ranks = 2, .arrivals = 1, .pendings = 1, .faults = 1, .deferred = true});
  one_place({.name = "2-stops", .ranks = 2, .outstanding = 2, .stops = 2, .deferred = true});
  bursts({.name = "2-burst", .ranks = 2, .outstanding = 3, .deferred = true});
  chunks({.name = "2-chunks", .ranks = 2, .prompt = 3, .outstanding = 2, .deferred = true});
  tight({.name = "2-tight", .ranks = 2, .outputs = 5, .outstanding = 2, .deferred = true});
  recompute({.name = "2-recompute", .ranks = 2, .outputs = 5, .outstanding = 2, .deferred = true});

  one_place({.name = "3-bounded", .ranks = 3});
  one_place({.name = "3-endless", .ranks = 3, .outstanding = 2, .deferred = true});
  one_place({.name = "3-aborts", .ranks = 3, .arrivals = 1, .aborts = 1, .deferred = true});
  one_place({.name = "3-faults", .ranks = 3, .arrivals = 1, .faults = 1});
  bursts({.name = "3-burst", .ranks = 3, .outstanding = 2});
  return clean ? 0 : 1;
}
