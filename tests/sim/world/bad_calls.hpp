// Calls that break the contract: each throws std::invalid_argument and changes nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "world/basics.hpp"
#include "world/rank.hpp"
#include "world/requests.hpp"

namespace deepinfer::sim {

class BadCalls {
 public:
  BadCalls(Rank& rank, Requests& requests, bool voting)
      : rank_(rank), engine_(*rank.engine), requests_(requests), limits_(rank.limits), voting_(voting) {}

  void make(Random& random) {
    unknown_ids();
    arguments();
    protocol();
    lives(random);
    commits(random);
    verification();
  }

  std::int64_t made = 0;

 private:
  template <class Call>
  void refused(const char* what, Call call) {
    const std::uint64_t before = engine_.fingerprint();
    require(!Requests::accepted(call), "I20: accepted:", what);
    require_equal(engine_.fingerprint(), before, "I20: a refused call changes the state:", what);
    ++made;
  }

  void unknown_ids() {
    const std::uint64_t id = std::uint64_t{1} << 40U;
    const std::array<std::uint64_t, 1> child{id + 1};
    refused("finish of an unknown id", [&] { engine_.finish(id, 1); });
    refused("pause of an unknown id", [&] { engine_.pause(id); });
    refused("resume of an unknown id", [&] { engine_.resume(id); });
    refused("begin_transfer of an unknown id", [&] { engine_.begin_transfer(id); });
    refused("end_transfer of an unknown id", [&] { engine_.end_transfer(id); });
    refused("blocks of an unknown id", [&] { engine_.blocks(id); });
    refused("slot of an unknown id", [&] { engine_.slot(id); });
    refused("fork of an unknown id", [&] { engine_.fork(id, child); });
  }

  void add(
      const char* what, std::span<const std::int32_t> tokens, std::int64_t most, std::int64_t least,
      std::span<const std::int32_t> checkpoints = {}, std::span<const ImageSpan> spans = {}
  ) {
    refused(what, [&] {
      engine_.add({std::uint64_t{1} << 41U, tokens, {most, least, {}}, checkpoints, spans});
    });
  }

  void add_prompted(
      const char* what, std::span<const std::int32_t> tokens, std::int64_t prompt, std::int64_t most
  ) {
    refused(what, [&] { engine_.add_prompted({std::uint64_t{1} << 41U, tokens, prompt, {most, 0, {}}}); });
  }

  void arguments() {
    std::vector<std::int32_t> longest(static_cast<std::size_t>(limits_.max_model_len), 1);
    const std::array<std::int32_t, 4> four{1, 2, 3, 4};
    const std::array<std::int32_t, 3> negative{1, -1, 2};
    const std::array<std::int32_t, 2> falls{2, 1};
    const std::array<std::int32_t, 1> outside{4};
    const std::array<ImageSpan, 1> beyond{ImageSpan{3, 5}};
    const std::array<ImageSpan, 1> empty{ImageSpan{2, 2}};
    const std::array<ImageSpan, 2> overlap{ImageSpan{0, 2}, ImageSpan{1, 3}};
    add("an empty prompt", {}, 1, 0);
    add("a prompt of max_model_len", longest, 1, 0);
    add("a negative token", negative, 1, 0);
    add("max_tokens 0", four, 0, 0);
    add("min_tokens over max_tokens", four, 2, 3);
    add("min_tokens below 0", four, 2, -1);
    add("falling checkpoints", four, 2, 0, falls);
    add("a checkpoint at the end", four, 2, 0, outside);
    add("a span past the prompt", four, 2, 0, {}, beyond);
    add("an empty span", four, 2, 0, {}, empty);
    add("overlapping spans", four, 2, 0, {}, overlap);
    add_prompted("a prompt as long as the sequence", four, 4, 9);
    add_prompted("no prompt", four, 0, 9);
    add_prompted("as much output as it may have", four, 2, 2);
    add_prompted("a sequence of max_model_len", longest, 2, 9);
    if (!limits_.prefills()) add("a prompt for a COMPLETION engine", four, 2, 0);
    if (!limits_.decodes()) add_prompted("a sequence for a PROMPT engine", four, 2, 9);
  }

  void protocol() {
    const Record zeros{};
    if (voting_) {
      refused("begin_step in a vote", [&] { engine_.begin_step(nullptr); });
      Record below = engine_.vote();
      const auto own = std::ranges::max_element(below);
      if (*own == 0) return;
      *own = 0;
      refused("a record below the own one", [&] { engine_.resolve_vote(below); });
      return;
    }
    refused("vote without one", [&] { engine_.vote(); });
    refused("resolve_vote without one", [&] { engine_.resolve_vote(zeros); });
    const auto& frames = rank_.model.frames;
    if (frames.size() == 2 || (!frames.empty() && frames[0].kind == StepKind::Prefill))
      refused("begin_step before a commit", [&] { engine_.begin_step(nullptr); });
    if (limits_.padded) {
      Record record{};
      record[GroupRule::kGraph] = limits_.max_total_q() + 1;
      if (frames.size() < 2) refused("a graph that is not there", [&] { engine_.begin_step(&record); });
    }
  }

  void lives(Random& random) {
    Item* const item = requests_.pick(random, Requests::is_live);
    if (item == nullptr) return;
    const std::array<std::int32_t, 2> tokens{1, 2};
    const std::array<std::uint64_t, 1> child{std::uint64_t{1} << 42U};
    const std::array<std::uint64_t, 2> twins{child[0], child[0]};
    const std::array<std::uint64_t, 1> itself{item->id};
    refused("reason 0", [&] { engine_.finish(item->id, 0); });
    refused("reason 6", [&] { engine_.finish(item->id, 6); });
    refused("an id that lives", [&] { engine_.add({item->id, tokens, {2, 0, {}}, {}, {}}); });
    refused("an id that lives, prompted", [&] { engine_.add_prompted({item->id, tokens, 1, {4, 0, {}}}); });
    const bool waits = item->where == Where::Waiting || item->where == Where::Incoming;
    if (waits) refused("blocks of one that waits", [&] { engine_.blocks(item->id); });
    if (waits || item->transfer) refused("begin_transfer", [&] { engine_.begin_transfer(item->id); });
    if (!item->transfer) refused("end_transfer without one", [&] { engine_.end_transfer(item->id); });
    if (!limits_.decodes() || !rank_.model.may_fork(*item))
      refused("fork of one that cannot", [&] { engine_.fork(item->id, child); });
    refused("fork into the parent's id", [&] { engine_.fork(item->id, itself); });
    refused("fork into one id twice", [&] { engine_.fork(item->id, twins); });
    std::vector<std::uint64_t> many;
    for (std::int32_t n = 0; n <= limits_.max_num_seqs; ++n)
      many.push_back(child[0] + static_cast<std::uint64_t>(n));
    refused("more branches than places", [&] { engine_.fork(item->id, many); });
    for (const Item* drains : rank_.model.draining) {
      if (drains->told)
        refused("an id that drains", [&] { engine_.add({drains->id, tokens, {2, 0, {}}, {}, {}}); });
    }
  }

  void commits(Random& random) {
    if (rank_.results.empty()) {
      refused("commit of no step", [&] { engine_.commit(rank_.model.next_step, {}); });
      return;
    }
    const Results& good = rank_.results.front();
    const auto commit = [&](const Results& results, std::uint64_t step) {
      engine_.commit(step, rank_.matrices(results));
    };
    refused("commit of a later step", [&] { commit(good, good.step_id + 1); });
    Results bad = good;
    ++bad.rows;
    bad.counts.push_back(1);
    bad.tokens.resize(bad.tokens.size() + static_cast<std::size_t>(limits_.max_q));
    bad.confidences.resize(bad.confidences.size() + static_cast<std::size_t>(limits_.nextn));
    refused("commit of a row too many", [&] { commit(bad, bad.step_id); });
    const Frame& frame = rank_.model.frames.front();
    for (std::size_t r = 0; r < frame.rows.size(); ++r) {
      if (frame.rows[r].serial != frame.rows[r].item->serial) continue;
      bad = good;
      const bool decode = frame.kind == StepKind::Decode;
      const std::int32_t most = !decode ? (frame.rows[r].samples ? 1 : 0)
                                        : (frame.provisional ? frame.rows[r].reach : frame.rows[r].q_len);
      bad.counts[r] = random.one_in(2) ? most + 1 : (frame.rows[r].samples ? 0 : -1);
      refused("a count out of range", [&] { commit(bad, bad.step_id); });
      if (!frame.rows[r].samples) continue;
      bad = good;
      bad.tokens[r * static_cast<std::size_t>(limits_.max_q)] = -1;
      refused("a negative token", [&] { commit(bad, bad.step_id); });
    }
  }

  void verification() {
    std::vector<double> curve(limits_.graph_sizes.size(), 1);
    refused("a flat curve", [&] { engine_.set_cost_curve(curve); });
    curve.back() = 0.5;
    refused("a falling curve", [&] { engine_.set_cost_curve(curve); });
    curve.back() = std::numeric_limits<double>::quiet_NaN();
    refused("a curve without a number", [&] { engine_.set_cost_curve(curve); });
    curve.push_back(2);
    refused("a curve too long", [&] { engine_.set_cost_curve(curve); });
    if (limits_.decodes() && !limits_.varlen) return;
    refused("observing no graph", [&] { engine_.observe(limits_.max_total_q() + 1, 1, 1, 1); });
    refused("observing too many rows", [&] {
      engine_.observe(limits_.graph_sizes[0], limits_.graph_sizes[0] + 1, 1, 1);
    });
    refused("observing a negative time", [&] { engine_.observe(limits_.graph_sizes[0], 0, -1, 1); });
    const std::vector<std::int32_t> caps{limits_.nextn, 0};
    const std::vector<std::uint16_t> confidences(2 * static_cast<std::size_t>(limits_.nextn), 9);
    const Matrix<std::uint16_t> matrix{confidences.data(), 2, static_cast<std::size_t>(limits_.nextn)};
    refused("a total below the rows", [&] { engine_.split(caps, matrix, 1); });
    refused("a total above the caps", [&] { engine_.split(caps, matrix, limits_.nextn + 3); });
  }

  Rank& rank_;
  EngineApi& engine_;
  Requests& requests_;
  const Limits& limits_;
  bool voting_;
};

}  // namespace deepinfer::sim
