// Random workloads on groups of schedulers, in C++ so that the sanitizers see every access. Prints one line
// for each config; a broken rule ends the program with status 1 and the seed. Usage: driver SECONDS
// [FIRST_SEED].
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/block_manager.hpp"
#include "engine/core.hpp"
#include "engine/engine_types.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_normal.hpp"
#include "engine/verify_fixed.hpp"

namespace {

using deepinfer::Action;
using deepinfer::EngineType;
using deepinfer::Matrix;
using deepinfer::Record;
using deepinfer::StepKind;
using Random = std::mt19937_64;

// Budget: prompt tokens of a step; a prompt longer than that is cut.
template <std::int32_t Nextn, std::int32_t Budget, std::int32_t Cp, bool StopPreempted>
struct Config {
  static constexpr EngineType kEngineType = EngineType::Normal;
  static constexpr std::int32_t kMaxNumSeqs = 5;
  static constexpr std::int32_t kMaxModelLen = 80;
  static constexpr std::int32_t kHistory = 3;
  static constexpr std::int32_t kNextn = Nextn;
  static constexpr std::int32_t kMaxQ = Nextn + 1;
  static constexpr std::int32_t kRuntimeMaxModelLen = kMaxModelLen + 3 * Nextn + 1;
  static constexpr std::int32_t kMaxNumBatchedTokens = Budget;
  static constexpr std::int32_t kMaxNumPrompts = 3;
  static constexpr std::int32_t kPrefillMaxSumSeqlenK = 100;
  static constexpr std::int32_t kBlockSize = 4;
  static constexpr std::int32_t kBlocksPerSeq = (kRuntimeMaxModelLen + kBlockSize - 1) / kBlockSize;
  static constexpr std::int32_t kNumBlocks = kBlocksPerSeq + 12;
  static constexpr std::int32_t kNumSlots = 7;
  static constexpr std::int32_t kPrefillAttemptInterval = 3;
  static constexpr std::int32_t kPrefillAnyAttemptInterval = 5;
  static constexpr std::int32_t kPrefillBurst = 2;
  static constexpr std::int32_t kPrefillCacheUsageLimitNumerator = 9;
  static constexpr std::int32_t kPrefillCacheUsageLimitDenominator = 10;
  static constexpr bool kStopPreemptedRequest = StopPreempted;
  static constexpr std::int32_t kCpSize = Cp;
  static constexpr bool kPaddedDispatch = false;
  static constexpr std::int32_t kMaxTotalQ = kMaxNumSeqs * kMaxQ;
  static constexpr std::array<std::int32_t, 3> kGraphSizes{1, 3, kMaxTotalQ};
  static constexpr std::array<std::int32_t, 3> kGraphRows{2, 10, 10};
  static constexpr std::int32_t kMaxGraphRows = 10;
};

std::int32_t token_at(std::uint64_t id, std::int32_t position) {
  return static_cast<std::int32_t>((id * 7919U + static_cast<std::uint64_t>(position) * 104729U) % 97U);
}

void require(bool holds, std::string_view rule) {
  if (!holds) throw std::logic_error(std::string(rule));
}

struct Results {
  std::uint64_t step_id = 0;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> counts;
  std::vector<std::uint16_t> confidences;
};

struct Life {
  std::int32_t prompt_length = 0;
  std::int32_t produced = 0;  // output tokens that the scheduler has taken
  bool ended = false;
};

// One scheduler and the device memory that its steps write: a tag for every token of every block.
template <class Cfg>
struct Rank {
  deepinfer::Core<Cfg, deepinfer::NormalStep, deepinfer::FixedVerification, deepinfer::OutputLengthOrder>
      core;
  std::map<std::uint64_t, Life> lives;
  std::map<std::uint64_t, std::int32_t> known;  // tokens that the device knows
  std::vector<std::pair<std::uint64_t, std::int32_t>> memory =
      std::vector<std::pair<std::uint64_t, std::int32_t>>(std::size_t{Cfg::kNumBlocks} * Cfg::kBlockSize);
  std::vector<Results> uncommitted;

  void add(std::uint64_t id, Random& random) {
    const auto length = static_cast<std::int32_t>(1 + random() % (Cfg::kMaxModelLen - 1));
    std::vector<std::int32_t> prompt;
    for (std::int32_t p = 0; p < length; ++p) prompt.push_back(token_at(id, p));
    const std::array<std::int32_t, 2> ends{static_cast<std::int32_t>(random() % 97), 13};
    const auto most = static_cast<std::int64_t>(1 + random() % 90);
    const auto least = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
    core.add(
        {.id = id, .tokens = prompt, .limits = {most, least, ends}, .checkpoints = {}, .image_spans = {}}
    );
    lives[id].prompt_length = length;
  }

  // An id whose end was reported, or that another rank has, is refused.
  void finish(std::uint64_t id, std::int32_t reason) {
    const auto life = lives.find(id);
    const std::uint64_t before = core.fingerprint();
    bool refused = false;
    try {
      core.finish(id, reason);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    require(refused == (life == lives.end() || life->second.ended), "an unknown id is refused, no other one");
    require(!refused || core.fingerprint() == before, "a refused call changes nothing");
  }

  std::pair<std::uint64_t, std::int32_t>& tag(
      const deepinfer::StepView& step, std::int32_t row, std::int32_t position
  ) {
    const std::size_t entry = static_cast<std::size_t>(row) * step.block_table.columns +
                              static_cast<std::size_t>(position / Cfg::kBlockSize);
    const std::int32_t block = step.block_table.data[entry];
    require(block > 0, "I9: a real row writes to a real block");
    return memory[static_cast<std::size_t>(block * Cfg::kBlockSize + position % Cfg::kBlockSize)];
  }

  void execute(Random& random) {
    const deepinfer::StepView step = core.step();
    const auto rows = static_cast<std::size_t>(step.num_rows);
    Results results{
        step.step_id,
        std::vector<std::int32_t>(rows * Cfg::kMaxQ),
        std::vector<std::int32_t>(rows),
        std::vector<std::uint16_t>(rows * Cfg::kNextn)
    };
    std::int32_t queries = 0;
    for (std::int32_t r = 0; r < step.num_rows; ++r) {
      const std::uint64_t id = step.ids[r];
      const std::int32_t q_len = step.q_len[r];
      queries += q_len;
      const std::int32_t planned = step.k_len[r] - q_len;
      const std::int32_t start = step.kind == StepKind::Decode ? known.at(id) - 1 : planned;
      require(start <= planned, "lengths are optimistic");
      for (std::int32_t p = start; p < start + q_len; ++p) tag(step, r, p) = {id, p};
      for (std::int32_t p = 0; p < start; ++p)
        require(tag(step, r, p) == std::pair(id, p), "I11: own tokens only");
      if (step.samples[r] == 0) {
        require(r + 1 == step.num_rows, "I19: nobody joins after a cut");
        require(
            q_len % (2 * Cfg::kCpSize) == 0 || Cfg::kCpSize == 1, "I19: a cut chunk is even over the ranks"
        );
        continue;
      }
      const std::int32_t first = step.kind == StepKind::Decode ? start + 1 : start + q_len;
      const std::int32_t count =
          step.kind == StepKind::Decode
              ? 1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(q_len))
              : 1;
      results.counts[static_cast<std::size_t>(r)] = count;
      for (std::int32_t j = 0; j < count; ++j)
        results.tokens[static_cast<std::size_t>(r * Cfg::kMaxQ + j)] = token_at(id, first + j);
      known[id] = first + count;
    }
    require(queries == step.total_q, "I14: the rows' queries add up");
    if (step.kind == StepKind::Decode) {
      require(
          step.graph >= step.total_q && step.input_ids.size() == static_cast<std::size_t>(step.graph),
          "I14: the graph"
      );
    } else {
      require(
          step.total_q <= Cfg::kMaxNumBatchedTokens && step.num_rows <= Cfg::kMaxNumPrompts,
          "I19: prefill limits"
      );
    }
    uncommitted.push_back(std::move(results));
  }

  void commit_oldest() {
    const Results results = std::move(uncommitted.front());
    uncommitted.erase(uncommitted.begin());
    const std::size_t rows = results.counts.size();
    const auto done = core.commit(
        results.step_id,
        {{results.tokens.data(), rows, Cfg::kMaxQ},
         results.counts,
         {results.confidences.data(), rows, Cfg::kNextn}}
    );
    for (std::size_t r = 0; r < rows; ++r) {
      Life& life = lives.at(done.ids[r]);
      require(done.emitted[r] <= results.counts[r], "I17: no token from nowhere");
      for (std::int32_t j = 0; j < done.emitted[r]; ++j) {
        const std::int32_t position = life.prompt_length + life.produced++;
        require(
            results.tokens[r * Cfg::kMaxQ + static_cast<std::size_t>(j)] == token_at(done.ids[r], position),
            "I17: each token once, in order"
        );
      }
    }
    collect();
  }

  void collect() {
    const auto ended = core.outcomes();
    for (const std::uint64_t id : ended.ids) {
      require(!lives.at(id).ended, "I20: exactly one end");
      lives.at(id).ended = true;
    }
  }
};

template <class Cfg>
class Group {
 public:
  Group(std::size_t ranks, bool deferred, std::uint64_t seed)
      : ranks_(ranks), deferred_(deferred), random_(seed) {}

  std::int64_t run() {
    std::uint64_t next_id = 1;
    const std::uint64_t initial = ranks_[0].core.fingerprint();
    for (std::uint64_t event = random_() % 60; event > 0; --event) {
      Rank<Cfg>& rank = ranks_[random_() % ranks_.size()];
      const std::uint64_t kind = random_() % 10;
      if (kind < 4) rank.add(next_id++, random_);
      if (kind == 4) rank.finish(1 + random_() % next_id, static_cast<std::int32_t>(1 + random_() % 5));
      rank.collect();
      for (std::uint64_t i = random_() % 6; kind > 4 && i > 0; --i) step();
    }
    while (step() != Action::Done) require(++drain_ < 5000, "I20: the group comes to an end");
    for (Rank<Cfg>& rank : ranks_) {
      require(rank.core.fingerprint() == initial, "I20: the fingerprint returns");
      for (const auto& [id, life] : rank.lives) require(life.ended, "I20: every request ends");
    }
    return steps_;
  }

 private:
  Action step() {
    ++steps_;
    std::vector<Action> actions;
    for (Rank<Cfg>& rank : ranks_) actions.push_back(rank.core.begin_step(has_flags_ ? &flags_ : nullptr));
    while (agreed(actions) == Action::Vote) {
      const Record reduced = reduce([](const Rank<Cfg>& rank) { return rank.core.vote(); });
      // A request may die between the votes.
      if (random_() % 50 == 0) ranks_[0].finish(1 + random_() % 20, 3);
      for (std::size_t i = 0; i < ranks_.size(); ++i) actions[i] = ranks_[i].core.resolve_vote(reduced);
    }
    const Action action = agreed(actions);
    require(action != Action::Fail, ranks_[0].core.fail_reason());
    has_flags_ = action == Action::Prefill || action == Action::Decode;
    if (has_flags_) {
      for (Rank<Cfg>& rank : ranks_) rank.execute(random_);
      flags_ = reduce([](const Rank<Cfg>& rank) { return rank.core.flags(); });
    }
    const std::size_t keep = deferred_ && action == Action::Decode ? 1 : 0;
    for (Rank<Cfg>& rank : ranks_) {
      rank.collect();
      while (rank.uncommitted.size() > keep) rank.commit_oldest();
      rank.core.check_invariants();
    }
    return action;
  }

  static Action agreed(const std::vector<Action>& actions) {
    for (const Action action : actions) require(action == actions[0], "I2: one step type");
    return actions[0];
  }

  template <class Read>
  Record reduce(Read read) const {
    Record result{};
    for (const Rank<Cfg>& rank : ranks_) {
      const Record record = read(rank);
      for (std::size_t i = 0; i < record.size(); ++i) result[i] = std::max(result[i], record[i]);
    }
    return result;
  }

  std::vector<Rank<Cfg>> ranks_;
  bool deferred_;
  Random random_;
  Record flags_{};
  bool has_flags_ = false;
  std::int64_t steps_ = 0;
  std::int64_t drain_ = 0;
};

template <class Cfg>
void play(const char* name, double seconds, std::uint64_t seed) {
  const auto start = std::chrono::steady_clock::now();
  std::int64_t steps = 0;
  std::int64_t groups = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    try {
      const std::uint64_t ranks = 1 + seed % 3;
      steps += Group<Cfg>(ranks, seed % 2 == 1, seed).run() * static_cast<std::int64_t>(ranks);
    } catch (const std::exception& fault) {
      std::printf("%s, seed %llu: %s\n", name, static_cast<unsigned long long>(seed), fault.what());
      std::exit(1);
    }
    ++seed;
    ++groups;
  }
  std::printf(
      "%-28s %8lld groups %10lld rank-steps\n",
      name,
      static_cast<long long>(groups),
      static_cast<long long>(steps)
  );
}

// Sharing and pins have no user in this engine type yet, so the pool is driven directly.
void play_block_manager(std::uint64_t seed) {
  Random random(seed);
  deepinfer::BlockManager<9> pool;
  std::array<std::int32_t, 9> references{};
  std::array<std::int32_t, 9> pins{};
  for (int i = 0; i < 100000; ++i) {
    const auto id = static_cast<std::int32_t>(1 + random() % 8);
    const std::uint64_t kind = random() % 5;
    const bool used = references[id] + pins[id] > 0;
    if (kind == 0 && pool.free_count() > 0) {
      const std::int32_t fresh = pool.allocate();
      require(
          fresh != 0 && references[fresh] == 0 && pins[fresh] == 0, "I10: an id in use is not handed out"
      );
      references[fresh] = 1;
    } else if (kind == 1 && references[id] > 0) {
      pool.share(id);
      ++references[id];
    } else if (kind == 2 && references[id] > 0) {
      pool.release(id);
      --references[id];
    } else if (kind == 3 && used) {
      pool.pin(id);
      ++pins[id];
    } else if (kind == 4 && pins[id] > 0) {
      pool.unpin(id);
      --pins[id];
    }
    std::int32_t free = 0;
    for (std::int32_t b = 1; b < 9; ++b) {
      require(pool.references(b) == references[b] && pool.pins(b) == pins[b], "I10: reference counts");
      free += references[b] == 0 && pins[b] == 0;
    }
    require(pool.free_count() == free && pool.walk_free_list() == free, "I9: the free list");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = (argc > 1 ? std::atof(argv[1]) : 12.0) / 6;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  try {
    play_block_manager(seed);
  } catch (const std::exception& fault) {
    std::printf("block manager: %s\n", fault.what());
    return 1;
  }
  play<Config<0, 64, 1, true>>("no drafts, stop", seconds, seed);
  play<Config<0, 1, 1, false>>("chunks of 1, recompute", seconds, seed);
  play<Config<0, 6, 1, true>>("chunks of 6, stop", seconds, seed);
  play<Config<1, 7, 1, false>>("chunks of 7, one draft", seconds, seed);
  play<Config<5, 50, 2, false>>("chunks of 50, cp 2, 5 drafts", seconds, seed);
  play<Config<5, 64, 4, true>>("chunks of 64, cp 4, 5 drafts", seconds, seed);
  return 0;
}
