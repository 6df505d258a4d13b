// The prompt step that the rules ask for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "world/model.hpp"

namespace deepinfer::sim {

// Whether every chunk can keep these images whole.
inline bool spans_fit(const Limits& limits, std::span<const ImageSpan> spans, std::int32_t prompt_length) {
  const std::int32_t margin = limits.cp > 1 ? 2 * limits.cp - 1 : 0;
  std::int32_t begin = 0;
  std::int32_t end = -1;  // no span yet
  for (const ImageSpan& span : spans) {
    if (span.start < std::max(end, 0) || span.end <= span.start || span.end > prompt_length) return false;
    const bool joined = end >= 0 && span.start - end < margin;
    begin = joined ? begin : span.start;
    end = span.end;
    if (end - begin + 2 * margin > limits.max_num_batched_tokens) return false;
  }
  return true;
}

class PrefillRules {
 public:
  explicit PrefillRules(Model& model) : model_(model), limits_(model.limits) {}

  // Fills the plan and takes what the admitted need. True if a prompt token is in it.
  bool schedule() {
    Plan& plan = model_.plan;
    plan.kind = StepKind::Prefill;
    frame_ = Frame{.kind = StepKind::Prefill, .rows = {}};
    tokens_ = limits_.max_num_batched_tokens;
    prompts_ = limits_.max_num_prompts;
    sum_k_ = limits_.max_sum_k;
    bool open = true;
    const Items started = model_.partial;
    for (Item* item : started) {
      if (item->paused) continue;
      open = open && take(*item);
    }
    while (open) {
      Item* const head = Model::first_unpaused(model_.waiting);
      if (head == nullptr || !model_.prefill_admissible(*head) || chunk(*head, 0, head->length) == 0) break;
      drop(model_.waiting, head);
      model_.occupy(*head, Where::Partial);
      model_.partial.push_back(head);
      admitted.push_back(head);
      open = take(*head);
    }
    return !plan.rows.empty();
  }

  Items admitted;  // their slot and blocks are to be learned
  Frame& frame() { return frame_; }

 private:
  // True if somebody else may join.
  bool take(Item& item) {
    const std::int32_t size = chunk(item, item.computed, item.prefill_length);
    if (size == 0) return false;
    const std::int32_t start = item.computed;
    item.computed += size;
    tokens_ -= size;
    --prompts_;
    sum_k_ -= item.computed;
    const bool last = item.computed == item.prefill_length;
    model_.plan.rows.push_back(
        {&item, item.id, start, size, item.length, item.slot, -1, 0, last, item.blocks, {}}
    );
    model_.plan.total += size;
    frame_.rows.push_back({&item, item.id, item.serial, size, size, last});
    if (!last) return false;
    drop(model_.partial, &item);
    item.where = Where::Prompted;
    model_.prompted.push_back(&item);
    return true;
  }

  bool legal(const Item& item, std::int32_t start, std::int32_t end) const {
    if (limits_.cp > 1 && (end - start) % (2 * limits_.cp) != 0) return false;
    return std::ranges::none_of(item.spans, [end](const ImageSpan& s) {
      return s.start < end && end < s.end;
    });
  }

  std::int32_t chunk(const Item& item, std::int32_t start, std::int32_t length) const {
    if (prompts_ == 0) return 0;
    const std::int32_t limit = std::min(length, start + tokens_);
    const std::int32_t end = limit == length ? length : cut(item, start, limit, length);
    return end > sum_k_ ? 0 : end - start;
  }

  std::int32_t cut(const Item& item, std::int32_t start, std::int32_t limit, std::int32_t length) const {
    std::int32_t best = start;
    std::int32_t best_checkpoint = start;
    for (std::int32_t end = start + 1; end <= limit; ++end) {
      if (!legal(item, start, end)) continue;
      best = end;
      if (std::ranges::find(item.checkpoints, end) != item.checkpoints.end()) best_checkpoint = end;
    }
    if (best_checkpoint > start) return best_checkpoint;
    if (best > start || !model_.plan.rows.empty() || item.spans.empty()) return best;
    for (std::int32_t end = limit + 1; end <= start + limits_.max_num_batched_tokens; ++end) {
      if (end == length || legal(item, start, end)) return end;
    }
    return start;
  }

  Model& model_;
  const Limits& limits_;
  Frame frame_;
  std::int32_t tokens_ = 0;
  std::int32_t prompts_ = 0;
  std::int32_t sum_k_ = 0;
};

}  // namespace deepinfer::sim
