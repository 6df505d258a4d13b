// One rank: the engine under test, the model that says what it should do, and the device that runs its steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine_api.hpp"
#include "world/basics.hpp"
#include "world/device.hpp"
#include "world/drafts.hpp"
#include "world/group_rule.hpp"
#include "world/model.hpp"
#include "world/model_decode.hpp"
#include "world/model_prefill.hpp"
#include "world/view_check.hpp"

namespace deepinfer::sim {

// What the world counts.
struct Tally {
  std::int64_t rank_steps = 0;
  std::int64_t idle = 0;  // of them, without a forward pass
  std::int64_t tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t forks = 0;
  std::int64_t copies = 0;
  std::int64_t provisional = 0;
  std::int64_t bad_calls = 0;
  std::int64_t loads = 0;
  std::int64_t drains = 0;
  std::int64_t failures = 0;  // groups that ended by an error of a rank
};

class Rank {
 public:
  Rank(const Setup& setup, std::uint64_t seed, Tally& tally)
      : limits(setup.limits),
        engine(setup.make()),
        model(limits),
        drafts(limits),
        device(limits, seed),
        tally_(tally) {}

  const Limits& limits;
  std::unique_ptr<EngineApi> engine;
  Model model;
  DraftRules drafts;
  Device device;
  std::vector<Results> results;  // of uncommitted steps
  std::uint64_t trace = 0;
  bool scheduled_ahead =
      false;  // a step is scheduled that the device has not run: tables are ahead of its memory

  // This rank's part of both records, as of now.
  Record flags() const {
    Record record{};
    record[GroupRule::kDecodable] = model.decodable();
    record[GroupRule::kUnfinished] = model.live() > 0;
    record[GroupRule::kPending] = model.expects();
    record[GroupRule::kError] = model.error;
    if (limits.type == EngineType::Prompt) record[GroupRule::kWork] = model.next_prompt() != nullptr;
    if (limits.type == EngineType::Completion) record[GroupRule::kWork] = model.decodable();
    if (limits.decodes()) {
      const auto rows = static_cast<std::int32_t>(model.running.size() + model.prompted.size());
      record[GroupRule::kGraph] = drafts.wish(rows);
    }
    const Record is = engine->flags();
    static constexpr const char* kNames[] = {"decodable", "unfinished", "pending", "error", "work", "graph"};
    for (std::size_t i = 0; i < is.size(); ++i) require_equal(is[i], record[i], "B13: flag", kNames[i]);
    return record;
  }

  // A step that fails admits nobody.
  void begin(bool fails) {
    model.begin();
    if (!fails) model.admit_incoming();
    wanted_ = model.next_prompt();
    attempted_ = false;
    const bool want = wanted_ != nullptr;
    ballot_ = {want, !want, model.live() > 0, model.decodable(), model.expects(), model.error};
  }
  // Of this step: whose prompt token could be scheduled, null if nobody's; a prompt step was tried.
  const Item* wanted() const { return wanted_; }
  bool attempted() const { return attempted_; }
  bool scheduled() const { return scheduled_; }

  Record first_ballot() const {
    const Record is = engine->vote();
    static constexpr const char* kRules[] = {
        "B16: want", "B16: decline", "I20: unfinished", "I21: decodable", "B13: pending", "I1: error"
    };
    for (std::size_t i = 0; i < is.size(); ++i)
      require_equal(is[i], ballot_[i], kRules[i], "voted in round 1");
    return is;
  }

  Record second_ballot() const {
    const Record is = engine->vote();
    const Record should_be{scheduled_, 0, 0, 0, 0, 0};
    require_equal(is[0], should_be[0], "I3: scheduled voted in round 2");
    require(is == should_be, "I3: the record of round 2 has more than one element");
    return is;
  }

  // The engine has scheduled a prompt step, tentatively or not.
  void attempt() {
    scheduled_ahead = true;
    PrefillRules rules(model);
    scheduled_ = rules.schedule();
    attempted_ = true;
    frame_ = rules.frame();
    for (Item* item : rules.admitted) {
      learn(*item);
      model.plan.zeroed.push_back(item->slot);
    }
    refresh();
  }

  void decode(std::int32_t agreed) {
    scheduled_ahead = true;
    const std::vector<std::uint64_t> loads = model.plan.loads;
    model.plan.clear();
    model.plan.loads = loads;
    DecodeRules rules(model, drafts, agreed);
    rules.schedule();
    for (Item* item : rules.selected()) learn(*item);
    for (std::size_t i = 0; i < rules.copying_slot.size(); ++i)
      model.plan.slot_copies[i].second = rules.copying_slot[i]->slot;
    for (std::size_t i = 0; i < rules.copying_block.size(); ++i) {
      const Item& item = *rules.copying_block[i];
      model.plan.block_copies[i].second =
          item.blocks[static_cast<std::size_t>((item.length - 1) / limits.block_size)];
    }
    frame_ = rules.frame();
    refresh();
    model.last_decode = model.next_step;
    tally_.preemptions += static_cast<std::int64_t>(model.plan.preempted.size());
    tally_.copies +=
        static_cast<std::int64_t>(model.plan.block_copies.size() + model.plan.slot_copies.size());
    tally_.provisional += model.plan.provisional ? 1 : 0;
  }

  void learn_loads() {
    for (Item* item : model.loading) {
      if (item->slot == kUnknown) {
        learn(*item);
        ++tally_.loads;
      }
    }
  }

  // The step is final.
  void publish() {
    frame_.step_id = model.next_step++;
    model.frames.push_back(frame_);
    model.publish();
    const StepView view = engine->step();
    require_equal(view.step_id, frame_.step_id, "I2: the number of the step");
    const ViewCheck check(limits, view, model.plan);
    check.lists();
    check.step();
    for (std::size_t r = 0; r < model.plan.rows.size(); ++r)
      mix(view.ids[r],
          view.q_len[r],
          view.k_len[r],
          view.slot[r],
          view.block_table.data[r * view.block_table.columns]);
    mix(view.total_q, view.graph);
  }

  void without_step() {
    scheduled_ahead = false;
    model.publish();
    const StepView view = engine->step();
    ViewCheck(limits, view, model.plan).lists();
    require(
        view.kind == StepKind::None && view.num_rows == 0, "I2: an action without a step shows", view.num_rows
    );
  }

  void execute() {
    scheduled_ahead = false;
    const std::uint64_t step_id = model.frames.back().step_id;
    results.push_back(device.execute(model.plan, step_id, model.blocks, [this](auto&... arguments) {
      check_split(arguments...);
    }));
  }

  void commit() {
    const Results done = std::move(results.front());
    results.erase(results.begin());
    const auto rows = static_cast<std::size_t>(done.rows);
    std::vector<CommittedRow> should_be = commit_oldest(model, done);
    const CommittedView view = engine->commit(done.step_id, matrices(done));
    require_equal(view.ids.size(), rows, "I17: committed rows");
    for (std::size_t r = 0; r < rows; ++r) {
      require_equal(view.ids[r], should_be[r].id, "I17: committed id of row", r);
      require_equal(view.emitted[r], should_be[r].emitted, "I17: tokens emitted for request", view.ids[r]);
      require_equal(view.reasons[r], should_be[r].reason, "I17: reason of request", view.ids[r]);
      tally_.tokens += view.emitted[r];
      mix(view.ids[r], view.emitted[r]);
    }
    collect();
  }

  StepResults matrices(const Results& done) const {
    const auto rows = static_cast<std::size_t>(done.rows);
    return {
        {done.tokens.data(), rows, static_cast<std::size_t>(limits.max_q)},
        done.counts,
        {done.confidences.data(), rows, static_cast<std::size_t>(limits.nextn)}
    };
  }

  // The ends are handed out.
  void collect() {
    const OutcomesView view = engine->outcomes();
    require_equal(view.ids.size(), model.ended.size(), "I20: requests that ended");
    for (std::size_t i = 0; i < view.ids.size(); ++i) {
      Item& item = *model.ended[i];
      require_equal(view.ids[i], item.id, "I20: end", i);
      require_equal(view.reasons[i], item.reason, "I18: reason of request", item.id);
      require_equal(view.stop_tokens[i], item.stop_token, "I17: stop token of request", item.id);
      require(!item.told, "I20: request ended twice:", item.id);
      item.told = true;
      mix(item.id, item.reason);
    }
    model.ended.clear();
  }

  // Counts that the engine keeps for people.
  void check_counts() const {
    for (const Counter& counter : engine->stats()) {
      const auto same = [&](std::string_view name, std::int64_t value, const char* rule) {
        if (counter.name == name) require_equal(counter.value, value, rule, counter.name);
      };
      same("free_blocks", model.blocks.free(), "I9: counter");
      same("free_slots", model.slots.free(), "I12: counter");
      same("free_places", model.free_places(), "I22: counter");
      same("draining", static_cast<std::int64_t>(model.draining.size()), "B8: counter");
      same("running", static_cast<std::int64_t>(model.running.size()), "I22: counter");
      same("waiting", static_cast<std::int64_t>(model.waiting.size()), "I20: counter");
      same("uncommitted_steps", static_cast<std::int64_t>(model.frames.size()), "B1: counter");
    }
    engine->check_invariants();
  }

  template <class... Values>
  void mix(Values... values) {
    ((trace = scramble(trace * 31 + static_cast<std::uint64_t>(values) + 7)), ...);
  }

 private:
  // Which ids the engine chose for what the model counted.
  void learn(Item& item) {
    const std::vector<std::int32_t> blocks = engine->blocks(item.id);
    require_equal(blocks.size(), item.blocks.size(), "I13: blocks of request", item.id);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (item.blocks[i] == kUnknown) {
        model.blocks.learn(blocks[i]);
        item.blocks[i] = blocks[i];
      }
      require_equal(blocks[i], item.blocks[i], "I9: block", i, "of request", item.id);
    }
    const std::int32_t slot = engine->slot(item.id);
    if (item.slot == kUnknown) {
      model.slots.learn(slot);
      item.slot = slot;
    }
    require_equal(slot, item.slot, "I12: slot of request", item.id);
  }

  void refresh() {
    for (PlannedRow& row : model.plan.rows) {
      row.slot = row.item->slot;
      row.blocks = row.item->blocks;
    }
  }

  void check_split(
      const std::vector<std::int32_t>& caps, const std::vector<Confidences>& confidences, std::int32_t total,
      const std::vector<std::int32_t>& should_be
  ) const {
    const auto width = static_cast<std::size_t>(limits.nextn);
    std::vector<std::uint16_t> flat;
    for (const Confidences& row : confidences)
      flat.insert(flat.end(), row.begin(), row.begin() + limits.nextn);
    const auto is = engine->split(caps, {flat.data(), caps.size(), width}, total);
    require(is == should_be, "R1: the split of", total, "tokens differs");
  }

  Tally& tally_;
  Record ballot_{};
  const Item* wanted_ = nullptr;
  bool attempted_ = false;
  bool scheduled_ = false;
  Frame frame_;
};

}  // namespace deepinfer::sim
