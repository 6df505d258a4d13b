// What the checker knows about one rank: its requests, the prefill step that it must schedule, and the rows
// whose results are out. Written from docs/scheduler.md sections 4 to 9, for requests without images and
// checkpoints.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "vote_rule.hpp"

namespace votecheck {

using deepinfer::Reason;
using deepinfer::StepKind;

struct Asked {
  std::uint64_t id = 0;
  std::int32_t tokens = 0;    // prompt and committed output
  std::int32_t left = 0;      // output tokens until the length limit
  std::int32_t computed = 0;  // of `tokens`, scheduled in prefill steps
  bool decodes = false;       // its last chunk is scheduled
  bool late = false;          // came after the first vote of the current step was published
};

struct Row {
  std::uint64_t id = 0;
  std::int32_t q_len = 0;
  std::int32_t k_len = 0;
  bool samples = false;
  bool live = true;
};

struct Flight {
  std::uint64_t step_id = 0;
  StepKind kind = StepKind::None;
  std::vector<Row> rows;
};

// Free blocks and slots.
struct Pools {
  std::int32_t blocks = 0;
  std::int32_t slots = 0;
};

template <class Cfg>
class RankModel {
 public:
  std::vector<Asked> queue;   // waits, front first
  std::vector<Asked> placed;  // in order of admission
  std::deque<Flight> flights;
  std::vector<Row> planned;                             // the prefill step that is being voted on
  std::vector<std::pair<std::uint64_t, Reason>> ended;  // not handed out yet
  std::vector<std::uint64_t> ignored;                   // ended while they waited, not shown by a step yet
  bool pending = false;
  bool error = false;

  bool lives(std::uint64_t id) const {
    const auto same = [id](const Asked& asked) { return asked.id == id; };
    return std::ranges::any_of(queue, same) || std::ranges::any_of(placed, same);
  }
  // Whoever is left came too late for this step.
  bool only_late() const { return std::ranges::all_of(queue, &Asked::late) && placed.empty(); }
  std::size_t live_count() const { return queue.size() + placed.size(); }

  Local local(const Pools& pools) const {
    Local local;
    local.want = wants(pools);
    local.decodable = decodable();
    local.unfinished = live_count() > 0;
    local.pending = pending;
    local.error = error;
    return local;
  }

  bool decodable() const {
    return std::ranges::any_of(placed, &Asked::decodes) || std::ranges::any_of(flights, [](const Flight& f) {
             return f.kind == StepKind::Decode && !f.rows.empty();
           });
  }

  bool wants(const Pools& pools) const { return first_wanted(pools) != 0; }

  // The request that a prefill step would begin with, 0 if there is none.
  std::uint64_t first_wanted(const Pools& pools) const {
    for (const Asked& asked : placed)
      if (!asked.decodes) return asked.id;
    return !queue.empty() && admissible(queue.front(), pools) ? queue.front().id : 0;
  }

  // Section 4, "The step": fills `planned` and moves the requests as the step does.
  void plan_prefill(Pools pools) {
    planned.clear();
    Budget budget;
    for (Asked& asked : placed) {
      if (!asked.decodes && !budget.take(asked, planned)) return;
    }
    while (!queue.empty() && admissible(queue.front(), pools)) {
      Budget tried = budget;
      Asked asked = queue.front();
      std::vector<Row> rows = planned;
      const bool open = tried.take(asked, rows);
      if (rows.size() == planned.size()) return;
      queue.erase(queue.begin());
      pools.blocks -= blocks_for(asked.tokens);
      --pools.slots;
      placed.push_back(asked);
      planned = std::move(rows);
      budget = tried;
      if (!open) return;
    }
  }

  // Who must have a row in the next decode step if nothing is short.
  std::vector<std::uint64_t> due_in_decode() const {
    std::vector<std::uint64_t> ids;
    for (const Asked& asked : placed) {
      if (asked.decodes && asked.left - (in_flight(asked.id) ? 1 : 0) > 0) ids.push_back(asked.id);
    }
    return ids;
  }

  // The request is gone; whatever is in flight for it has no one to report to.
  void end(std::uint64_t id, Reason reason) {
    const auto same = [id](const Asked& asked) { return asked.id == id; };
    if (std::erase_if(queue, same) > 0) ignored.push_back(id);
    std::erase_if(placed, same);
    bury(id);
    ended.emplace_back(id, reason);
  }

  void preempt(std::uint64_t id) {
    if (Cfg::kStopPreemptedRequest) return end(id, Reason::Preempted);
    const auto found = std::ranges::find(placed, id, &Asked::id);
    require(found != placed.end(), "I18: only a request with a place is preempted");
    Asked asked = *found;
    placed.erase(found);
    asked.computed = 0;
    asked.decodes = false;
    queue.insert(queue.begin(), asked);
    bury(id);
  }

  // `count` tokens of a live row, the last one an end id if `stop`; returns how many the request takes.
  std::int32_t deliver(std::uint64_t id, std::int32_t count, bool stop) {
    const auto found = std::ranges::find(placed, id, &Asked::id);
    require(found != placed.end(), "I17: tokens go to a request with a place");
    const std::int32_t taken = std::min(count, found->left);
    found->tokens += taken;
    found->left -= taken;
    if (stop && taken == count && count > 0) {
      end(id, Reason::Stop);
    } else if (found->left == 0) {
      end(id, Reason::Length);
    }
    return taken;
  }

  // What the scheduler's fingerprint must tell apart.
  void mix_into(Digest& digest) const {
    digest.add(queue.size());
    for (const auto* list : {&queue, &placed}) {
      for (const Asked& asked : *list) {
        digest.add(asked.id);
        digest.add(static_cast<std::uint64_t>(asked.tokens * 1024 + asked.left * 8 + asked.decodes));
        digest.add(static_cast<std::uint64_t>(asked.computed));
      }
    }
    digest.add(flights.size());
    for (const Flight& flight : flights) {
      digest.add(static_cast<std::uint64_t>(flight.kind));
      mix_rows(digest, flight.rows);
    }
    digest.add(pending);
    digest.add(error);
  }

  // What only the checks read, and the step that is being voted on: a fingerprint knows a step once it is
  // published.
  void mix_notes_into(Digest& digest) const {
    mix_rows(digest, planned);
    digest.add(ignored.size());
    for (const std::uint64_t id : ignored) digest.add(id);
    for (const Asked& asked : queue) digest.add(asked.late);
  }

  static void mix_rows(Digest& digest, const std::vector<Row>& rows) {
    digest.add(rows.size());
    for (const Row& row : rows) {
      digest.add(row.id);
      digest.add(static_cast<std::uint64_t>(row.q_len * 1024 + row.k_len * 8 + row.samples * 2 + row.live));
    }
  }

 private:
  // The limits of one prefill step; at cp 1 and without images every cut is legal.
  struct Budget {
    std::int32_t tokens = Cfg::kMaxNumBatchedTokens;
    std::int32_t prompts = Cfg::kMaxNumPrompts;
    std::int32_t sum_k = Cfg::kPrefillMaxSumSeqlenK;

    // False when the step is closed; a row was added or not.
    bool take(Asked& asked, std::vector<Row>& rows) {
      const std::int32_t size = std::min(asked.tokens - asked.computed, tokens);
      if (prompts == 0 || size == 0 || asked.computed + size > sum_k) return false;
      asked.computed += size;
      asked.decodes = asked.computed == asked.tokens;
      tokens -= size;
      sum_k -= asked.computed;
      --prompts;
      rows.push_back({asked.id, size, asked.computed, asked.decodes, true});
      return asked.decodes;
    }
  };

  static std::int32_t blocks_for(std::int32_t tokens) {
    return (tokens + Cfg::kBlockSize - 1) / Cfg::kBlockSize;
  }

  bool admissible(const Asked& asked, const Pools& pools) const {
    constexpr std::int64_t usable = Cfg::kNumBlocks - 1;
    const bool crowded = (usable - pools.blocks) * Cfg::kPrefillCacheUsageLimitDenominator >
                         usable * Cfg::kPrefillCacheUsageLimitNumerator;
    return !crowded && placed.size() < static_cast<std::size_t>(Cfg::kMaxNumSeqs) &&
           blocks_for(asked.tokens) <= pools.blocks && pools.slots > 0;
  }

  bool in_flight(std::uint64_t id) const {
    return std::ranges::any_of(flights, [id](const Flight& flight) {
      return flight.kind == StepKind::Decode &&
             std::ranges::any_of(flight.rows, [id](const Row& row) { return row.live && row.id == id; });
    });
  }

  void bury(std::uint64_t id) {
    const auto mark = [id](std::vector<Row>& rows) {
      for (Row& row : rows) row.live = row.live && row.id != id;
    };
    for (Flight& flight : flights) mark(flight.rows);
    mark(planned);
  }
};

}  // namespace votecheck
