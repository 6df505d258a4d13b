// Turns bytes into calls on one scheduler, right ones and wrong ones. After each call the bookkeeping must
// hold; a call that is refused must have changed nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_api.hpp"
#include "engine/engine_types.hpp"
#include "engine/group_flags.hpp"

namespace fuzz {

using deepinfer::Action;
using deepinfer::Record;
using deepinfer::StepKind;

struct Broken : std::logic_error {
  using std::logic_error::logic_error;
};

inline void require(bool holds, const char* rule) {
  if (!holds) throw Broken(rule);
}

// What the caller must know of an engine.
struct Sizes {
  std::int32_t nextn;
  std::int32_t model_len;
  std::int32_t block_size;
  std::vector<std::int32_t> graphs;
};

struct Setup {
  Sizes sizes;
  std::unique_ptr<deepinfer::EngineApi> (*make)();
};

// The engines of this program.
const std::vector<Setup>& setups();

class Caller {
 public:
  Caller(
      std::unique_ptr<deepinfer::EngineApi> engine, const Sizes& sizes, std::span<const std::uint8_t> bytes
  )
      : engine_(std::move(engine)), sizes_(sizes), bytes_(bytes) {}

  // Throws Broken, or what check_invariants throws, when a rule does not hold.
  void run() {
    while (!bytes_.empty()) {
      const std::uint64_t before = engine_->fingerprint();
      try {
        call(byte() % 24);
      } catch (const std::invalid_argument&) {
        require(engine_->fingerprint() == before, "bad calls: a refused call changed the state");
      }
      engine_->check_invariants();
    }
    const auto twin = engine_->clone();
    require(twin->fingerprint() == engine_->fingerprint(), "clone: the copy differs");
    twin->check_invariants();
  }

 private:
  struct Open {
    std::uint64_t step_id;
    StepKind kind;
    std::vector<std::int32_t> most;  // tokens that each row may bring
  };

  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  std::int32_t below(std::int32_t count) { return byte() % count; }
  // Seldom: a call that is wrong on purpose.
  bool wrong() { return byte() % 16 == 15; }
  std::uint64_t id() { return 1 + byte() % 8U; }

  void call(std::int32_t which) {
    switch (which) {
      case 0:
      case 1:
        return add();
      case 2:
        return add_prompted();
      case 3:
        return fork();
      case 4:
        return engine_->finish(id(), below(8));
      case 5:
        return engine_->abort(id());
      case 6:
        return engine_->pause(id());
      case 7:
        return engine_->resume(id());
      case 8:
        return engine_->begin_transfer(id());
      case 9:
        return engine_->end_transfer(id());
      case 10:
        return look();
      case 11:
        return engine_->set_pending(below(2) == 1);
      case 12:
        if (byte() == 77) engine_->set_error("told by a test");
        return;
      case 13:
        return curve();
      case 14:
        return observe();
      case 15:
        return split();
      case 16:
        return begin();
      case 17:
        return resolve();
      case 18:
        return commit();
      case 19:
        static_cast<void>(engine_->vote());
        return;
      default:
        return step();
    }
  }

  deepinfer::RequestLimits limits() {
    const std::int32_t most = 1 + below(10);
    ends_ = {below(16), below(16)};
    return {wrong() ? below(3) - 1 : most, wrong() ? below(20) - 1 : below(most), ends_};
  }

  std::vector<std::int32_t> tokens(std::int32_t most) {
    std::vector<std::int32_t> result(static_cast<std::size_t>(below(most)));
    for (std::int32_t& token : result) token = below(16);
    if (wrong() && !result.empty()) result.back() = -1;
    return result;
  }

  void add() {
    const std::vector<std::int32_t> prompt = tokens(sizes_.model_len + 2);
    const auto length = static_cast<std::int32_t>(prompt.size());
    std::vector<std::int32_t> checkpoints;
    std::vector<deepinfer::ImageSpan> spans;
    if (below(2) == 0) checkpoints.push_back(below(std::max(length, 1)));
    if (below(2) == 0) {
      const std::int32_t start = below(std::max(length, 1));
      spans.push_back({start, start + below(4)});
      if (below(2) == 0) spans.push_back({spans[0].end + below(3), spans[0].end + 1 + below(4)});
    }
    engine_->add({id(), prompt, limits(), checkpoints, spans});
  }

  void add_prompted() {
    const std::vector<std::int32_t> all = tokens(sizes_.model_len + 2);
    const auto length = static_cast<std::int32_t>(all.size());
    const std::int32_t prompt = wrong() ? below(20) - 2 : length - 1 - below(2);
    engine_->add_prompted({id(), all, prompt, limits()});
  }

  void fork() {
    std::vector<std::uint64_t> children(static_cast<std::size_t>(below(3)));
    for (std::uint64_t& child : children) child = id();
    engine_->fork(id(), children);
  }

  void look() {
    const std::uint64_t who = id();
    const auto blocks = engine_->blocks(who);
    require(
        std::ranges::all_of(blocks, [](std::int32_t block) { return block > 0; }), "I9: block 0 is handed out"
    );
    require(engine_->slot(who) > 0, "I12: slot 0 is handed out");
  }

  void curve() {
    std::vector<double> milliseconds(sizes_.graphs.size() + (wrong() ? 1 : 0));
    double value = 1;
    for (double& entry : milliseconds) entry = value += below(8) / 4.0;
    if (wrong()) milliseconds.front() = below(2) == 0 ? -1.0 : milliseconds.back() + 1;
    engine_->set_cost_curve(milliseconds);
  }

  void observe() {
    const std::int32_t graph =
        wrong() ? byte() : sizes_.graphs[static_cast<std::size_t>(below(256)) % sizes_.graphs.size()];
    engine_->observe(graph, below(6) - 1, below(40) - 1, below(10) - 1);
  }

  void split() {
    const auto rows = static_cast<std::size_t>(below(4));
    const std::size_t columns = static_cast<std::size_t>(sizes_.nextn) + (wrong() ? 1 : 0);
    std::vector<std::int32_t> caps(rows);
    std::vector<std::uint16_t> confidences(rows * columns);
    for (std::int32_t& cap : caps) cap = wrong() ? below(256) - 100 : below(sizes_.nextn + 1);
    for (std::uint16_t& value : confidences) value = static_cast<std::uint16_t>(byte() * 257);
    const std::int32_t total = static_cast<std::int32_t>(rows) + below(20) - 2;
    const auto queries = engine_->split(caps, {confidences.data(), rows, columns}, total);
    std::int32_t sum = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      require(1 <= queries[r] && queries[r] <= 1 + caps[r], "I14: a row verifies 1 to 1 + cap tokens");
      sum += queries[r];
    }
    require(sum == total, "I14: the queries are the total");
  }

  // What the other ranks of a group may add to this rank's own record.
  Record reduced(Record own) {
    for (std::size_t i = 0; i < 5; ++i) {
      if (i != deepinfer::group_flags::kError && byte() % 4 == 3) own[i] = 1;
    }
    if (own[5] != 0) own[5] = std::max(own[5], sizes_.graphs[byte() % sizes_.graphs.size()]);
    if (wrong()) own[5] = byte();
    return own;
  }

  void begin() {
    const bool with = has_flags_ && !wrong();
    const Record record = reduced(flags_);
    take(engine_->begin_step(with ? &record : nullptr));
  }

  void resolve() {
    Record record = engine_->vote();
    for (std::int32_t& value : record) {
      if (byte() % 4 == 3) value = 1;
      if (wrong()) --value;
    }
    record[5] = engine_->vote()[5];
    take(engine_->resolve_vote(record));
  }

  void take(Action action) {
    has_flags_ = has_flags_ && action == Action::Vote;
    if (action == Action::Vote) return;
    const auto view = engine_->step();
    check(view, action);
    if (action == Action::Prefill || action == Action::Decode) {
      Open open{view.step_id, view.kind, {}};
      for (std::int32_t r = 0; r < view.num_rows; ++r) {
        const auto row = static_cast<std::size_t>(r);
        const std::int32_t queries = view.provisional != 0 ? 1 + view.caps[row] : view.q_len[row];
        open.most.push_back(view.kind == StepKind::Decode ? queries : view.samples[row]);
      }
      open_.push_back(std::move(open));
    }
    if (action != Action::Done && action != Action::Fail) {
      flags_ = engine_->flags();
      has_flags_ = true;
    }
  }

  void check(const deepinfer::StepView& view, Action action) const {
    const bool steps = action == Action::Prefill || action == Action::Decode;
    require(
        view.kind == (action == Action::Prefill  ? StepKind::Prefill
                      : action == Action::Decode ? StepKind::Decode
                                                 : StepKind::None),
        "I8: a step of the action's kind"
    );
    std::int32_t queries = 0;
    for (std::size_t r = 0; r < view.ids.size(); ++r) {
      const bool real = r < static_cast<std::size_t>(view.num_rows);
      require(steps, "I8: rows without a step");
      require(real == (view.slot[r] > 0), "B24: padding has slot 0, real rows have their own");
      require(real == (view.ids[r] != 0), "B24: padding has no id");
      if (real) queries += view.q_len[r];
      for (std::int32_t position = 0; position < view.k_len[r]; ++position) {
        const auto entry =
            r * view.block_table.columns + static_cast<std::size_t>(position / sizes_.block_size);
        if (real) require(view.block_table.data[entry] > 0, "I13: a block for each token");
      }
    }
    require(queries == view.total_q, "I14: the rows' queries add up");
    for (std::size_t copy = 0; copy < view.clone_blocks.rows; ++copy) {
      for (std::size_t other = 0; other < view.clone_blocks.rows; ++other) {
        require(
            view.clone_blocks.data[2 * copy] != view.clone_blocks.data[2 * other + 1],
            "B9: a block is copied from and written in one step"
        );
      }
    }
    if (view.kind == StepKind::Decode) require(view.total_q <= view.graph, "I14: the graph holds the step");
  }

  void commit() {
    if (open_.empty()) {
      engine_->commit(
          byte(),
          {{nullptr, 0, static_cast<std::size_t>(sizes_.nextn) + 1},
           {},
           {nullptr, 0, static_cast<std::size_t>(sizes_.nextn)}}
      );
      throw Broken("bad calls: a commit without a step was taken");
    }
    const Open& open = open_.front();
    const std::size_t rows = open.most.size() + (wrong() ? 1 : 0);
    const auto columns = static_cast<std::size_t>(sizes_.nextn) + 1;
    std::vector<std::int32_t> tokens(rows * columns);
    std::vector<std::int32_t> counts(rows);
    std::vector<std::uint16_t> confidences(rows * (columns - 1));
    for (std::size_t r = 0; r < rows; ++r) {
      const std::int32_t most = r < open.most.size() ? open.most[r] : 1;
      counts[r] = wrong() ? below(12) - 2 : std::min(most, 1 + below(8));
      counts[r] = std::clamp(counts[r], -2, static_cast<std::int32_t>(columns));
      for (std::size_t j = 0; j < columns; ++j) tokens[r * columns + j] = wrong() ? -1 : below(16);
      for (std::size_t j = 0; j + 1 < columns; ++j)
        confidences[r * (columns - 1) + j] = static_cast<std::uint16_t>(byte() * 257);
    }
    const std::uint64_t step_id = open.step_id + (wrong() ? 1 : 0);
    const auto done = engine_->commit(
        step_id, {{tokens.data(), rows, columns}, counts, {confidences.data(), rows, columns - 1}}
    );
    require(rows == open.most.size() && step_id == open.step_id, "bad calls: a wrong commit was taken");
    for (std::size_t r = 0; r < rows; ++r)
      require(done.emitted[r] <= std::clamp(counts[r], 0, open.most[r]), "I17: no token from nowhere");
    open_.erase(open_.begin());
    drain();
  }

  void drain() {
    const auto ended = engine_->outcomes();
    for (const std::int32_t reason : ended.reasons)
      require(1 <= reason && reason <= 5, "I20: an end has a reason");
  }

  // Whatever a right caller would do next.
  void step() {
    if (open_.size() == 2 || (!open_.empty() && open_.front().kind == StepKind::Prefill)) return commit();
    if (voting()) return resolve();
    begin();
  }

  bool voting() const {
    try {
      static_cast<void>(engine_->vote());
      return true;
    } catch (const std::invalid_argument&) {
      return false;
    }
  }

  std::unique_ptr<deepinfer::EngineApi> engine_;
  const Sizes& sizes_;
  std::span<const std::uint8_t> bytes_;
  std::array<std::int32_t, 2> ends_{};
  std::vector<Open> open_;
  Record flags_{};
  bool has_flags_ = false;
};

}  // namespace fuzz
