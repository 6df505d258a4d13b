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

// Incoming: it waits for memory. Loading: its cache is being written. Partial: some chunks are scheduled.
enum class Stage : std::uint8_t { Waiting, Incoming, Partial, Loading, Decoding };

struct Asked {
  std::uint64_t id = 0;
  std::int32_t tokens = 0;    // prompt and committed output
  std::int32_t output = 0;    // committed output tokens, one that came with it included
  std::int32_t left = 0;      // output tokens until the length limit
  std::int32_t computed = 0;  // of `tokens`, scheduled in prefill steps
  Stage stage = Stage::Waiting;
  bool paused = false;
  bool late = false;  // came after the last record that this step's decision reads
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

// What is free.
struct Pools {
  std::int32_t places = 0;
  std::int32_t blocks = 0;
  std::int32_t slots = 0;
};

template <class Cfg>
class RankModel {
 public:
  std::vector<Asked> queue;             // waits for prefill, front first
  std::vector<Asked> incoming;          // waits for memory, front first
  std::vector<Asked> placed;            // in order of admission
  std::vector<std::uint64_t> draining;  // ended, a transfer still uses its memory
  std::deque<Flight> flights;
  std::vector<Row> planned;                             // the prefill step that is being voted on
  std::vector<std::uint64_t> loads;                     // admitted with this step's begin
  std::vector<std::pair<std::uint64_t, Reason>> ended;  // not handed out yet
  std::vector<std::uint64_t> ignored;                   // ended while they waited, not shown by a step yet
  bool pending = false;
  bool error = false;

  static constexpr bool kNormal = Cfg::kEngineType == deepinfer::EngineType::Normal;
  static constexpr bool kPrompt = Cfg::kEngineType == deepinfer::EngineType::Prompt;

  template <class Visit>
  void each(Visit visit) const {
    for (const auto* list : {&queue, &incoming, &placed})
      for (const Asked& asked : *list) visit(asked);
  }
  Asked* find(std::uint64_t id) {
    for (auto* list : {&queue, &incoming, &placed})
      for (Asked& asked : *list)
        if (asked.id == id) return &asked;
    return nullptr;
  }
  bool takes(std::uint64_t id) const {
    bool found = false;
    each([&](const Asked& asked) { found = found || asked.id == id; });
    return found || std::ranges::count(draining, id) > 0;
  }
  bool all(bool Asked::* property) const {
    bool result = true;
    each([&](const Asked& asked) { result = result && asked.*property; });
    return result;
  }
  void forget_late() {
    for (auto* list : {&queue, &incoming, &placed})
      for (Asked& asked : *list) asked.late = false;
  }
  bool is_initial() const { return live_count() == 0 && draining.empty() && !pending && !error; }
  std::size_t live_count() const { return queue.size() + incoming.size() + placed.size(); }

  Local local(const Pools& pools) const {
    Local local;
    local.want = !is_completion() && wants(pools);
    local.decodable = decodable();
    local.unfinished = live_count() > 0;
    local.pending = pending || expects(pools);
    local.error = error;
    local.work = kPrompt ? local.want : is_completion() && local.decodable;
    return local;
  }

  bool decodable() const {
    const auto decodes = [](const Asked& asked) { return asked.stage == Stage::Decoding && !asked.paused; };
    return std::ranges::any_of(placed, decodes) || in_flight(StepKind::Decode);
  }

  // Something outside, or a result on the way, may make progress possible.
  bool expects(const Pools& pools) const {
    bool outside = !draining.empty() || in_flight(StepKind::Prefill);
    each([&](const Asked& asked) { outside = outside || asked.paused || asked.stage == Stage::Loading; });
    const auto next = std::ranges::find(incoming, false, &Asked::paused);
    return outside || (next != incoming.end() && has_room(*next, pools));
  }

  bool wants(const Pools& pools) const { return first_wanted(pools) != 0; }

  // The request that a prefill step would begin with, 0 if there is none.
  std::uint64_t first_wanted(const Pools& pools) const {
    for (const Asked& asked : placed)
      if (asked.stage == Stage::Partial && !asked.paused) return asked.id;
    const auto head = std::ranges::find(queue, false, &Asked::paused);
    return head != queue.end() && admissible(*head, pools) ? head->id : 0;
  }

  // Section 5: what begin_step admits, noted in `loads`.
  void admit_incoming(Pools pools) {
    loads.clear();
    while (true) {
      const auto next = std::ranges::find(incoming, false, &Asked::paused);
      if (next == incoming.end() || !has_room(*next, pools)) return;
      next->stage = Stage::Loading;
      take(pools, *next);
      loads.push_back(next->id);
      placed.push_back(*next);
      incoming.erase(next);
    }
  }

  void end_transfer(std::uint64_t id) {
    if (std::erase(draining, id) == 0) find(id)->stage = Stage::Decoding;
  }

  // Section 4, "The step": fills `planned` and moves the requests as the step does.
  void plan_prefill(Pools pools) {
    planned.clear();
    Budget budget;
    for (Asked& asked : placed) {
      if (asked.stage == Stage::Partial && !asked.paused && !budget.take(asked, planned)) return;
    }
    while (true) {
      const auto head = std::ranges::find(queue, false, &Asked::paused);
      if (head == queue.end() || !admissible(*head, pools)) return;
      const std::size_t rows = planned.size();
      Asked asked = *head;
      const bool open = budget.take(asked, planned);
      if (planned.size() == rows) return;
      queue.erase(head);
      take(pools, asked);
      placed.push_back(asked);
      if (!open) return;
    }
  }

  // Who must have a row in the next decode step if nothing is short.
  std::vector<std::uint64_t> due_in_decode() const {
    std::vector<std::uint64_t> ids;
    for (const Asked& asked : placed) {
      const bool decodes = asked.stage == Stage::Decoding && !asked.paused;
      if (decodes && asked.left - (in_flight(asked.id) ? 1 : 0) > 0) ids.push_back(asked.id);
    }
    return ids;
  }

  // The request is gone; whatever is in flight for it has no one to report to.
  void end(std::uint64_t id, Reason reason) {
    const auto same = [id](const Asked& asked) { return asked.id == id; };
    if (std::erase_if(queue, same) + std::erase_if(incoming, same) > 0) {
      ignored.push_back(id);
    } else if (find(id)->stage == Stage::Loading) {
      draining.push_back(id);
    }
    std::erase_if(placed, same);
    bury(id);
    ended.emplace_back(id, reason);
  }

  void preempt(std::uint64_t id) {
    check_victim(id);
    if (Cfg::kStopPreemptedRequest) return end(id, Reason::Preempted);
    const auto found = std::ranges::find(placed, id, &Asked::id);
    Asked asked = *found;
    placed.erase(found);
    asked.computed = 0;
    asked.stage = Stage::Waiting;
    queue.insert(queue.begin(), asked);
    bury(id);
  }

  // Section 6: who gives way has the most output, the later one of equals.
  void check_victim(std::uint64_t id) const {
    const auto victim = std::ranges::find(placed, id, &Asked::id);
    require(victim != placed.end(), "I18: only a request with a place is preempted");
    for (const Asked& asked : placed) {
      const bool decodes = asked.stage == Stage::Decoding;
      require(!decodes || asked.output <= victim->output, "I18: who has the most output gives way");
    }
  }

  // `count` tokens of a live row, the last one an end id if `stop`; returns how many the request takes.
  std::int32_t deliver(std::uint64_t id, std::int32_t count, bool stop) {
    const auto found = std::ranges::find(placed, id, &Asked::id);
    require(found != placed.end(), "I17: tokens go to a request with a place");
    const std::int32_t taken = std::min(count, found->left);
    found->tokens += taken;
    found->left -= taken;
    found->output += taken;
    if (stop && taken == count && count > 0) {
      end(id, Reason::Stop);
    } else if (found->left == 0) {
      end(id, Reason::Length);
    }
    return taken;
  }

  // What the scheduler's fingerprint must tell apart.
  void mix_into(Digest& digest) const {
    digest.add(queue.size() * 16 + incoming.size() * 4 + draining.size());
    each([&digest](const Asked& asked) {
      digest.add(asked.id * 64 + static_cast<std::uint64_t>(asked.stage) * 8 + asked.paused);
      digest.add(static_cast<std::uint64_t>(asked.tokens * 1024 + asked.output * 32 + asked.left));
      digest.add(static_cast<std::uint64_t>(asked.computed));
    });
    for (const std::uint64_t id : draining) digest.add(id);
    digest.add(flights.size());
    for (Flight flight : flights) {
      digest.add(static_cast<std::uint64_t>(flight.kind));
      // Where a dead row would have read and written decides nothing any more.
      for (Row& row : flight.rows) row.k_len *= static_cast<std::int32_t>(row.live);
      mix_rows(digest, flight.rows);
    }
    digest.add(pending);
    digest.add(error);
  }

  // What only the checks read, and the step that is being voted on: a fingerprint knows a step once it is
  // published.
  void mix_notes_into(Digest& digest) const {
    mix_rows(digest, planned);
    for (const auto* list : {&ignored, &loads}) {
      digest.add(list->size());
      for (const std::uint64_t id : *list) digest.add(id);
    }
    each([&digest](const Asked& asked) { digest.add(asked.late); });
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
      const bool last = asked.computed == asked.tokens;
      asked.stage = last ? Stage::Decoding : Stage::Partial;
      tokens -= size;
      sum_k -= asked.computed;
      --prompts;
      rows.push_back({asked.id, size, asked.computed, last, true});
      return last;
    }
  };

  static std::int32_t blocks_for(std::int32_t tokens) {
    return (tokens + Cfg::kBlockSize - 1) / Cfg::kBlockSize;
  }

  static bool is_completion() { return !kNormal && !kPrompt; }

  static void take(Pools& pools, const Asked& asked) {
    --pools.places;
    --pools.slots;
    pools.blocks -= blocks_for(asked.tokens);
  }

  bool has_room(const Asked& asked, const Pools& pools) const {
    return placed.size() < static_cast<std::size_t>(Cfg::kMaxNumSeqs) && pools.places > 0 &&
           blocks_for(asked.tokens) <= pools.blocks && pools.slots > 0;
  }

  bool admissible(const Asked& asked, const Pools& pools) const {
    constexpr std::int64_t usable = Cfg::kNumBlocks - 1;
    const bool crowded = (usable - pools.blocks) * Cfg::kPrefillCacheUsageLimitDenominator >
                         usable * Cfg::kPrefillCacheUsageLimitNumerator;
    return !crowded && has_room(asked, pools);
  }

  bool in_flight(StepKind kind) const {
    return std::ranges::any_of(flights, [kind](const Flight& flight) {
      return flight.kind == kind && !flight.rows.empty();
    });
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
