// What an event does to a rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "world/bad_calls.hpp"
#include "world/basics.hpp"
#include "world/events.hpp"
#include "world/rank.hpp"
#include "world/requests.hpp"

namespace deepinfer::sim {

class Faults {
 public:
  Faults(Rank& rank, Ids ids, std::uint64_t seed, Tally& tally)
      : rank_(rank), limits_(rank.limits), tally_(tally), requests_(rank, ids, seed) {}

  // An engine that chooses lengths does not start without one.
  void first_curve() {
    require(!Requests::accepted([&] { rank_.engine->begin_step(nullptr); }), "I20: a step without a curve");
    set_curve(7);
  }

  // `voting`: a vote of the step is not resolved.
  void apply(const Event& event, bool voting) {
    Random random(event.draw);
    const auto live = [&] { return requests_.pick(random, Requests::is_live); };
    const auto transfers = [&] {
      return requests_.pick(random, [](const Item& item) { return item.transfer; });
    };
    switch (event.kind) {
      case Kind::Add:
        return requests_.add(random);
      case Kind::AddBurst:
        for (std::int32_t n = 2 + random.below(6); n > 0; --n) requests_.add(random);
        return;
      case Kind::AddPrompted:
        return requests_.add_prompted(random);
      case Kind::Fork:
        return fork(random, 2);
      case Kind::ForkStorm:
        for (std::int32_t n = 4; n > 0; --n) fork(random, limits_.max_num_seqs);
        return;
      case Kind::Finish:
        return requests_.finish(
            random, random.one_in(4) ? requests_.pick(random, [](const Item&) { return true; }) : live()
        );
      case Kind::Pause:
        return requests_.set_paused(live(), true);
      case Kind::PauseStorm:
        for (const auto& item : rank_.model.items) {
          if (Requests::is_live(*item)) requests_.set_paused(item.get(), random.one_in(2));
        }
        return;
      case Kind::Resume:
        return requests_.set_paused(
            requests_.pick(random, [](const Item& item) { return item.paused; }), false
        );
      case Kind::BeginTransfer:
        return requests_.begin_transfer(random);
      case Kind::EndTransfer:
        return requests_.end_transfer(transfers());
      case Kind::LoadFails: {
        Item* const item = requests_.pick(random, [](const Item& i) { return i.where == Where::Loading; });
        if (item != nullptr) ++tally_.drains;
        return requests_.finish(random, item);
      }
      case Kind::Pending:
        rank_.model.pending = random.one_in(2);
        return rank_.engine->set_pending(rank_.model.pending);
      case Kind::Costs:
        return costs(random);
      case Kind::BadCall: {
        BadCalls calls(rank_, requests_, voting);
        calls.make(random);
        tally_.bad_calls += calls.made;
        return;
      }
      case Kind::Commit:
        // Results that are there may arrive at any edge.
        if (!rank_.results.empty()) rank_.commit();
        return;
      case Kind::Clone:
        rank_.engine = rank_.engine->clone();
        return;
      case Kind::Again: {
        // The id of one that decodes is used again at once, while its last row still runs.
        Item* const item =
            requests_.pick(random, [](const Item& i) { return i.where == Where::Running && !i.transfer; });
        if (item == nullptr) return;
        requests_.finish(random, item);
        rank_.collect();
        return requests_.add_again(random, *item);
      }
      case Kind::Error:
        rank_.model.error = true;
        return rank_.engine->set_error("device lost at edge " + std::to_string(static_cast<int>(event.edge)));
    }
  }

  // What was paused resumes, transfers end.
  void settle() {
    if (std::exchange(rank_.model.pending, false)) rank_.engine->set_pending(false);
    for (const auto& item : rank_.model.items) {
      if (item->paused) requests_.set_paused(item.get(), false);
      if (item->transfer) requests_.end_transfer(item.get());
    }
  }

 private:
  void fork(Random& random, std::int32_t most) {
    const std::size_t before = rank_.model.items.size();
    requests_.fork(random, most);
    tally_.forks += static_cast<std::int64_t>(rank_.model.items.size() - before);
  }

  void set_curve(std::uint64_t draw) {
    Random random(draw);
    std::vector<double> curve;
    double duration = 1;
    for (std::size_t g = 0; g < limits_.graph_sizes.size(); ++g)
      curve.push_back(duration += random.below(100) / 64.0);
    curve.back() += 0.5;
    rank_.engine->set_cost_curve(curve);
    rank_.drafts.costs.set_curve(curve);
  }

  void costs(Random& random) {
    if (!limits_.varlen) return;
    if (random.one_in(8)) return set_curve(random.next());
    for (std::int32_t n = random.below(60); n >= 0; --n) {
      const std::int32_t graph = limits_.graph_sizes[static_cast<std::size_t>(
          random.below(static_cast<std::int32_t>(limits_.graph_sizes.size()))
      )];
      const std::int32_t rows = random.below(std::min(graph, limits_.max_num_seqs) + 1);
      const double forward = random.below(1000) / 128.0;
      const double sampler = random.below(1000) / 512.0;
      rank_.engine->observe(graph, rows, forward, sampler);
      rank_.drafts.costs.observe(limits_, graph, rows, forward, sampler);
    }
  }

  Rank& rank_;
  const Limits& limits_;
  Tally& tally_;
  Requests requests_;
};

}  // namespace deepinfer::sim
