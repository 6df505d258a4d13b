// What one rank's scheduler should know, written from the rules alone and without care for speed: requests,
// lists, memory and frames. The world calls it in step with the engine and compares whatever can be seen.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine_api.hpp"
#include "world/basics.hpp"
#include "world/limits.hpp"
#include "world/pool.hpp"
#include "world/stream.hpp"

namespace deepinfer::sim {

enum class Where : std::uint8_t { Waiting, Incoming, Partial, Loading, Prompted, Running, Ended };

inline constexpr std::size_t kMostDrafts = 5;
using Confidences = std::array<std::uint16_t, kMostDrafts>;

struct Item {
  std::uint64_t id = 0;
  Stream stream;
  std::int32_t prompt_length = 0;
  std::int32_t limit = 0;
  std::int32_t min_tokens = 0;
  std::vector<std::int32_t> end_ids;
  std::vector<std::int32_t> checkpoints;
  std::vector<ImageSpan> spans;
  Where where = Where::Waiting;
  bool paused = false;
  std::int32_t pauses = 0;        // how often it was paused
  std::int32_t length = 0;        // tokens, committed
  std::int32_t first_output = 0;  // length when it came, or branched off

  // While it has a place, and while it drains.
  std::int32_t computed = 0;
  std::int32_t written = 0;  // cache entries that the device has
  std::int32_t prefill_length = 0;
  std::vector<std::int32_t> blocks;
  std::int32_t slot = 0;
  bool transfer = false;
  bool load = false;                          // the transfer fills its cache
  std::int32_t transfer_length = 0;           // cache entries when the transfer began
  std::vector<std::int32_t> transfer_blocks;  // and where they were
  std::uint64_t serial = 0;                   // of its stay, 0 while it has none
  std::uint64_t last_step = 0;                // the last decode step that had it
  std::int32_t last_row = 0;
  std::vector<std::int32_t> prompt_drafts;
  std::int32_t outputs = 0;  // confidences of how many
  bool passed_over = false;
  std::array<Confidences, 2> confidences{};

  // What happened.
  bool finished = false;  // from outside
  bool told = false;      // its end was handed out
  std::int32_t reason = 0;
  std::int32_t stop_token = -1;
};

struct FrameRow {
  Item* item;
  std::uint64_t id;
  std::uint64_t serial;
  std::int32_t q_len;
  std::int32_t reach;
  bool samples;
};

struct Frame {
  std::uint64_t step_id = 0;
  StepKind kind = StepKind::None;
  bool provisional = false;
  std::vector<FrameRow> rows;
};

// What the step should look like.
struct PlannedRow {
  Item* item;
  std::uint64_t id;
  std::int32_t start;
  std::int32_t q_len;
  std::int32_t known;  // tokens that the host has
  std::int32_t slot;
  std::int32_t remap;
  std::int32_t cap;
  bool samples;
  std::vector<std::int32_t> blocks;
  std::vector<std::int32_t> drafts;  // ids that the host has
};

struct Plan {
  StepKind kind = StepKind::None;
  std::int32_t total = 0;
  std::int32_t graph = 0;
  bool provisional = false;
  std::vector<PlannedRow> rows;
  std::vector<std::pair<std::int32_t, std::int32_t>> block_copies;
  std::vector<std::pair<std::int32_t, std::int32_t>> slot_copies;
  std::vector<std::int32_t> zeroed;
  std::vector<std::uint64_t> ignored;
  std::vector<std::uint64_t> preempted;
  std::vector<std::uint64_t> loads;

  void clear() { *this = Plan{}; }
};

using Items = std::vector<Item*>;

inline void drop(Items& list, const Item* item) { std::erase(list, item); }

class Model {
 public:
  explicit Model(const Limits& limits_of_engine)
      : limits(limits_of_engine), blocks("block", limits.num_blocks), slots("slot", limits.num_slots) {}

  const Limits& limits;
  Pool blocks;
  Pool slots;
  std::vector<std::unique_ptr<Item>> items;  // in the order of their ids
  Items waiting, incoming, partial, loading, prompted, running, draining;
  std::vector<Frame> frames;  // uncommitted, the oldest first
  Plan plan;
  std::vector<std::uint64_t> ignored;  // since the last step was shown
  std::vector<Item*> ended;            // since the last outcomes()
  std::vector<std::int32_t> pinned_blocks, pinned_slots;
  bool pending = false;
  bool error = false;
  std::uint64_t next_step = 1;
  std::uint64_t last_decode = 0;
  std::uint64_t last_serial = 0;

  std::int32_t live() const { return static_cast<std::int32_t>(waiting.size() + incoming.size()) + places(); }
  // That count against max_num_seqs.
  std::int32_t places() const {
    return static_cast<std::int32_t>(partial.size() + loading.size() + prompted.size() + running.size());
  }
  std::int32_t free_places() const {
    const auto drains = static_cast<std::int32_t>(draining.size());
    return std::min(limits.max_num_seqs - places(), 2 * limits.max_num_seqs - places() - drains);
  }

  static Item* first_unpaused(const Items& list) {
    const auto found = std::ranges::find_if(list, [](const Item* item) { return !item->paused; });
    return found == list.end() ? nullptr : *found;
  }

  bool fits(std::int32_t tokens) const {
    return free_places() > 0 && limits.blocks_for(tokens) <= blocks.free() && slots.free() > 0;
  }

  bool prefill_admissible(const Item& item) const {
    const std::int64_t usable = limits.num_blocks - 1;
    const bool over =
        std::int64_t{blocks.used()} * limits.usage_denominator > usable * limits.usage_numerator;
    return !over && fits(item.length);
  }

  // Whose prompt token could be scheduled now, null if nobody's.
  const Item* next_prompt() const {
    if (const Item* const started = first_unpaused(partial)) return started;
    const Item* const head = first_unpaused(waiting);
    return head != nullptr && prefill_admissible(*head) ? head : nullptr;
  }

  bool decodable_now() const {
    return first_unpaused(prompted) != nullptr || first_unpaused(running) != nullptr;
  }
  bool frame_with_rows(StepKind kind) const {
    return std::ranges::any_of(frames, [kind](const Frame& f) { return f.kind == kind && !f.rows.empty(); });
  }
  bool decodable() const { return decodable_now() || frame_with_rows(StepKind::Decode); }

  bool expects() const {
    if (pending || !loading.empty() || !draining.empty() || frame_with_rows(StepKind::Prefill)) return true;
    for (const Items* list : {&waiting, &incoming, &partial, &loading, &prompted, &running}) {
      if (std::ranges::any_of(*list, [](const Item* item) { return item->paused; })) return true;
    }
    const Item* const head = first_unpaused(incoming);
    return head != nullptr && fits(head->length);
  }

  // The row of the uncommitted decode frame that has the sequence, if any.
  const FrameRow* flying(const Item& item) const {
    if (item.last_step == 0) return nullptr;
    for (const Frame& frame : frames) {
      if (frame.step_id == item.last_step) return &frame.rows[static_cast<std::size_t>(item.last_row)];
    }
    return nullptr;
  }

  // --- calls

  void begin() {
    for (const std::int32_t block : pinned_blocks) blocks.unpin(block);
    for (const std::int32_t slot : pinned_slots) slots.unpin(slot);
    pinned_blocks.clear();
    pinned_slots.clear();
    plan.clear();
  }

  void admit_incoming() {
    for (Item* head = first_unpaused(incoming); head != nullptr && fits(head->length);
         head = first_unpaused(incoming)) {
      drop(incoming, head);
      occupy(*head, Where::Loading);
      head->computed = head->length;
      head->transfer = head->load = true;
      loading.push_back(head);
      plan.loads.push_back(head->id);
    }
  }

  void occupy(Item& item, Where where) {
    item.where = where;
    item.prefill_length = item.length;
    item.computed = item.written = 0;
    item.serial = ++last_serial;
    item.slot = slots.take();
    for (std::int32_t i = limits.blocks_for(item.length); i > 0; --i) item.blocks.push_back(blocks.take());
  }

  void begin_transfer(Item& item) {
    item.transfer = true;
    item.transfer_length = std::min(item.written, item.length - 1);
    item.transfer_blocks = item.blocks;
  }

  void end_transfer(Item& item) {
    item.transfer = item.load = false;
    if (item.where == Where::Ended) {
      drop(draining, &item);
      give_back(item);
    } else if (item.where == Where::Loading) {
      drop(loading, &item);
      item.where = Where::Prompted;
      prompted.push_back(&item);
    }
  }

  void end(Item& item, Reason reason, std::int32_t stop_token = -1) {
    const bool waits = item.where == Where::Waiting || item.where == Where::Incoming;
    leave_lists(item);
    item.where = Where::Ended;
    item.paused = false;
    item.reason = static_cast<std::int32_t>(reason);
    item.stop_token = stop_token;
    ended.push_back(&item);
    if (waits) {
      ignored.push_back(item.id);
    } else if (item.transfer) {
      item.serial = 0;
      draining.push_back(&item);
    } else {
      give_back(item);
    }
  }

  // To the front of the prefill queue, to be computed again.
  void requeue(Item& item) {
    leave_lists(item);
    give_back(item);
    item.where = Where::Waiting;
    waiting.insert(waiting.begin(), &item);
  }

  bool may_fork(const Item& item) const {
    return (item.where == Where::Prompted || item.where == Where::Running) && flying(item) == nullptr;
  }

  void fork(const Item& parent, std::uint64_t child) {
    auto made = std::make_unique<Item>();
    made->id = child;
    made->stream = Stream(parent.stream, parent.length, hash(parent.stream.branch(), child));
    made->prompt_length = parent.prompt_length;
    made->limit = parent.limit;
    made->min_tokens = parent.min_tokens;
    made->end_ids = parent.end_ids;
    made->where = Where::Prompted;
    made->checkpoints = parent.checkpoints;
    made->spans = parent.spans;
    made->length = made->first_output = parent.length;
    made->written = parent.length - 1;
    made->prefill_length = parent.prefill_length;
    made->serial = ++last_serial;
    made->slot = parent.slot;
    slots.share(parent.slot);
    const auto count = static_cast<std::size_t>(limits.blocks_for(parent.length - 1));
    made->blocks.assign(parent.blocks.begin(), parent.blocks.begin() + static_cast<std::ptrdiff_t>(count));
    for (const std::int32_t block : made->blocks) blocks.share(block);
    prompted.push_back(made.get());
    items.push_back(std::move(made));
  }

  void publish() {
    plan.ignored = std::move(ignored);
    ignored.clear();
  }

 private:
  void leave_lists(const Item& item) {
    for (Items* list : {&waiting, &incoming, &partial, &loading, &prompted, &running}) drop(*list, &item);
  }

  void give_back(Item& item) {
    for (const std::int32_t block : item.blocks) blocks.release(block);
    slots.release(item.slot);
    item.blocks.clear();
    item.slot = 0;
    item.serial = item.last_step = 0;
    item.prompt_drafts.clear();
    item.outputs = 0;
    item.passed_over = false;
  }
};

}  // namespace deepinfer::sim
