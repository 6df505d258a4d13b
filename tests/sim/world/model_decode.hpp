// The decode step that the rules ask for, and what the results of a step change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "world/drafts.hpp"
#include "world/model.hpp"

namespace deepinfer::sim {

class DecodeRules {
 public:
  DecodeRules(Model& model, DraftRules& drafts, std::int32_t agreed)
      : model_(model),
        limits_(model.limits),
        drafts_(drafts),
        agreed_(limits_.padded ? agreed : limits_.max_total_q()) {}

  void schedule() {
    for (Item* item : model_.prompted) {
      item->where = Where::Running;
      model_.running.push_back(item);
    }
    model_.prompted.clear();
    std::ranges::stable_sort(model_.running, {}, [](const Item* item) {
      return item->length - item->prompt_length;
    });
    select();
    std::ranges::stable_sort(selected_, std::greater{}, [](const Item* item) { return item->length; });
    verify();
  }

  // Blocks that an owner must have for each of the selected, in order of selection; the engine's ids are
  // learned.
  Items selected() const { return turns_; }
  Frame& frame() { return frame_; }

 private:
  void select() {
    // Preemption shortens the list from its end, and may reach the one that asks.
    for (std::size_t i = 0; i < model_.running.size(); ++i) {
      Item* const item = model_.running[i];
      const bool takes_part =
          std::cmp_less(selected_.size(), agreed_) && !item->paused && tokens_left(*item) > 0;
      const bool served = takes_part && provide(*item);
      if (served) {
        selected_.push_back(item);
      } else if (item->where == Where::Running) {
        item->prompt_drafts.clear();
        item->outputs = 0;
        item->passed_over = true;
      } else {
        break;  // it was the last one, and gave way itself
      }
    }
    turns_ = selected_;
  }

  std::int32_t tokens_left(const Item& item) const {
    return item.limit - item.length - (model_.flying(item) != nullptr ? 1 : 0);
  }

  bool provide(Item& item) {
    const std::int32_t in_flight = model_.flying(item) != nullptr ? limits_.max_q : 0;
    const std::int32_t wanted = limits_.blocks_for(item.length + in_flight + limits_.max_q);
    const auto at = static_cast<std::size_t>((item.length - 1) / limits_.block_size);
    while (true) {
      const bool copy_slot = model_.slots.references(item.slot) > 1;
      if (copy_slot && model_.slots.free() == 0) return false;
      const bool copy_block = at < item.blocks.size() && model_.blocks.references(item.blocks[at]) > 1;
      if (item.transfer && (copy_slot || copy_block)) return false;
      const std::int32_t growth = std::max(0, wanted - static_cast<std::int32_t>(item.blocks.size()));
      if (growth + (copy_block ? 1 : 0) <= model_.blocks.free()) {
        if (copy_slot) copy_its_slot(item);
        if (copy_block) copy_its_block(item, at);
        for (std::int32_t i = 0; i < growth; ++i) item.blocks.push_back(model_.blocks.take());
        return true;
      }
      Item* const last = model_.running.back();
      if (last->transfer) return false;
      const bool helps =
          std::ranges::any_of(last->blocks, [this](std::int32_t block) { return model_.blocks.last(block); });
      if (!helps && last != &item) return false;
      preempt(*last);
      if (last == &item) return false;
    }
  }

  void preempt(Item& item) {
    model_.plan.preempted.push_back(item.id);
    if (limits_.stop_preempted) {
      model_.end(item, Reason::Preempted);
    } else {
      model_.requeue(item);
    }
  }

  // The destination is learned later.
  void copy_its_slot(Item& item) {
    model_.plan.slot_copies.emplace_back(item.slot, kUnknown);
    copying_slot.push_back(&item);
    model_.slots.pin(item.slot);
    model_.pinned_slots.push_back(item.slot);
    model_.slots.release(item.slot);
    item.slot = model_.slots.take();
  }

  void copy_its_block(Item& item, std::size_t at) {
    const std::int32_t shared = item.blocks[at];
    item.blocks[at] = model_.blocks.take();
    if ((item.length - 1) % limits_.block_size > 0) {
      model_.plan.block_copies.emplace_back(shared, kUnknown);
      copying_block.push_back(&item);
      model_.blocks.pin(shared);
      model_.pinned_blocks.push_back(shared);
    }
    model_.blocks.release(shared);
  }

  void verify() {
    Plan& plan = model_.plan;
    plan.kind = StepKind::Decode;
    frame_ = Frame{.kind = StepKind::Decode, .rows = {}};
    std::vector<std::int32_t> caps;
    std::vector<Confidences> total_data;
    std::vector<Confidences> split_data;
    std::int32_t all = 0;
    bool on_device = false;
    for (Item* item : selected_) {
      const FrameRow* const row = model_.flying(*item);
      const bool continues = item->last_step != 0 && item->last_step == model_.last_decode;
      const auto given = static_cast<std::int32_t>(item->prompt_drafts.size());
      const std::int32_t present = continues ? limits_.nextn : given;
      const std::int32_t cap = std::clamp(tokens_left(*item) - 1, 0, present);
      const auto latest = [&](std::int32_t age) {
        return item->outputs > age ? item->confidences[static_cast<std::size_t>(age)] : drafts_.prior();
      };
      caps.push_back(cap);
      total_data.push_back(latest(row != nullptr ? 0 : 1));
      split_data.push_back(row == nullptr && item->outputs > 0 ? latest(0) : total_data.back());
      on_device = on_device || (cap > 0 && row != nullptr);
      all += 1 + cap;
      plan.rows.push_back(
          {item,
           item->id,
           item->length - 1 + (row != nullptr ? row->reach : 0),
           1,
           item->length,
           item->slot,
           continues ? item->last_row : -1,
           cap,
           true,
           item->blocks,
           item->prompt_drafts}
      );
    }
    const std::int32_t count = drafts_.choose(caps, total_data, agreed_);
    std::vector<std::int32_t> drafts;
    if (limits_.varlen) {
      drafts = split_of(caps, split_data, count);
    } else {
      std::int32_t left = count;
      for (const std::int32_t cap : caps) {
        drafts.push_back(std::min(cap, left));
        left -= drafts.back();
      }
    }
    plan.total = static_cast<std::int32_t>(selected_.size()) + count;
    plan.graph = limits_.graph_sizes[limits_.graph_of(limits_.padded ? agreed_ : plan.total)];
    plan.provisional = frame_.provisional = limits_.varlen && plan.total < all && on_device;
    for (std::size_t r = 0; r < selected_.size(); ++r) {
      Item& item = *selected_[r];
      plan.rows[r].q_len = 1 + drafts[r];
      frame_.rows.push_back({&item, item.id, item.serial, 1 + drafts[r], 1 + caps[r], true});
      item.last_step = model_.next_step;
      item.last_row = static_cast<std::int32_t>(r);
      item.prompt_drafts.clear();
      item.passed_over = false;
    }
  }

 public:
  Items copying_slot;   // in order of plan.slot_copies
  Items copying_block;  // in order of plan.block_copies

 private:
  Model& model_;
  const Limits& limits_;
  DraftRules& drafts_;
  std::int32_t agreed_;
  Items selected_;
  Items turns_;
  Frame frame_;
};

// What a device hands back for a step.
struct Results {
  std::uint64_t step_id = 0;
  std::int32_t rows = 0;
  std::vector<std::int32_t> tokens;  // [rows, max_q]
  std::vector<std::int32_t> counts;
  std::vector<std::uint16_t> confidences;  // [rows, nextn]

  std::span<const std::int32_t> row(std::size_t r, std::int32_t max_q) const {
    return std::span(tokens).subspan(r * static_cast<std::size_t>(max_q), static_cast<std::size_t>(max_q));
  }
};

struct CommittedRow {
  std::uint64_t id;
  std::int32_t emitted;
  std::int32_t reason;
};

// The oldest frame takes its results; says what commit() should say.
inline std::vector<CommittedRow> commit_oldest(Model& model, const Results& results) {
  const Limits& limits = model.limits;
  const Frame frame = model.frames.front();
  std::vector<CommittedRow> told;
  for (std::size_t r = 0; r < frame.rows.size(); ++r) {
    Item& item = *frame.rows[r].item;
    CommittedRow row{frame.rows[r].id, 0, 0};
    const bool live = item.serial == frame.rows[r].serial;
    const std::int32_t count = results.counts[r];
    const std::span<const std::int32_t> tokens = results.row(r, limits.max_q);
    if (live && count > 0 && limits.nextn > 0) {
      bool drafted = frame.kind == StepKind::Decode;
      if (frame.kind == StepKind::Prefill) {
        item.prompt_drafts.clear();
        for (std::size_t k = 1; k < tokens.size() && tokens[k] >= 0; ++k)
          item.prompt_drafts.push_back(tokens[k]);
        drafted = !item.prompt_drafts.empty();
      }
      if (drafted && !item.passed_over) {
        item.confidences[1] = item.confidences[0];
        const auto width = static_cast<std::size_t>(limits.nextn);
        std::copy_n(
            results.confidences.begin() + static_cast<std::ptrdiff_t>(r * width),
            width,
            item.confidences[0].begin()
        );
        item.outputs = std::min(item.outputs + 1, 2);
      }
    }
    for (std::int32_t j = 0; live && j < count && row.reason == 0; ++j) {
      const std::int32_t token = tokens[static_cast<std::size_t>(j)];
      ++item.length;
      ++row.emitted;
      const bool ends = std::ranges::find(item.end_ids, token) != item.end_ids.end();
      if (ends && item.length - item.prompt_length >= item.min_tokens) {
        row.reason = static_cast<std::int32_t>(Reason::Stop);
        model.end(item, Reason::Stop, token);
      } else if (item.length >= item.limit) {
        row.reason = static_cast<std::int32_t>(Reason::Length);
        model.end(item, Reason::Length);
      }
    }
    told.push_back(row);
  }
  model.frames.erase(model.frames.begin());
  return told;
}

}  // namespace deepinfer::sim
