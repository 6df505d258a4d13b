// Requests as callers send them, most of them legal, and what happens to those that are there.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "world/basics.hpp"
#include "world/rank.hpp"

namespace deepinfer::sim {

// Ids of one rank, spread so that two ranks never share one.
class Ids {
 public:
  Ids(std::uint64_t rank, std::uint64_t ranks) : next_(1 + rank), ranks_(ranks) {}
  std::uint64_t take() { return std::exchange(next_, next_ + ranks_); }

 private:
  std::uint64_t next_;
  std::uint64_t ranks_;
};

class Requests {
 public:
  Requests(Rank& rank, Ids ids, std::uint64_t seed)
      : rank_(rank), limits_(rank.limits), ids_(ids), seed_(seed) {}

  // A new request with the id of one that has ended and whose blocks came back.
  void add_again(Random& random, Item& old) {
    again_ = &old;
    if (limits_.prefills()) {
      add(random);
    } else {
      add_prompted(random);
    }
  }

  void add(Random& random) {
    auto item = std::make_unique<Item>();
    draw_lengths(*item, random, false);
    if (random.one_in(3)) draw_checkpoints(*item, random);
    if (random.one_in(3)) draw_spans(*item, random);
    const bool legal = spans_fit(limits_, item->spans, item->prompt_length);
    const std::uint64_t before = rank_.engine->fingerprint();
    const bool taken = accepted([&] {
      rank_.engine->add(
          {item->id,
           item->stream.tokens(item->prompt_length),
           limits_of(*item),
           item->checkpoints,
           item->spans}
      );
    });
    require_equal(taken, legal, "I19: add of request with images", item->id);
    if (!taken) {
      require_equal(rank_.engine->fingerprint(), before, "I20: a refused add changes the state");
      return;
    }
    if (limits_.type == EngineType::Prompt) item->limit = item->prompt_length + 1;
    rank_.model.waiting.push_back(item.get());
    rank_.model.items.push_back(std::move(item));
  }

  void add_prompted(Random& random) {
    auto item = std::make_unique<Item>();
    draw_lengths(*item, random, true);
    item->where = Where::Incoming;
    rank_.engine->add_prompted(
        {item->id, item->stream.tokens(item->length), item->prompt_length, limits_of(*item)}
    );
    rank_.model.incoming.push_back(item.get());
    rank_.model.items.push_back(std::move(item));
  }

  void fork(Random& random, std::int32_t most) {
    Item* const parent = pick(random, [this](const Item& item) { return rank_.model.may_fork(item); });
    const std::int32_t room = rank_.model.free_places();
    if (parent == nullptr || room == 0) return;
    std::vector<std::uint64_t> children;
    for (std::int32_t n = 1 + random.below(std::min(most, room)); n > 0; --n) children.push_back(ids_.take());
    rank_.engine->fork(parent->id, children);
    for (const std::uint64_t child : children) rank_.model.fork(*parent, child);
  }

  // Any request that was ever here; one whose end was told is refused.
  void finish(Random& random, Item* item) {
    if (item == nullptr) return;
    const auto reason = static_cast<Reason>(1 + random.below(5));
    const std::uint64_t before = rank_.engine->fingerprint();
    const bool done = accepted([&] { rank_.engine->finish(item->id, static_cast<std::int32_t>(reason)); });
    require_equal(done, !item->told, "I20: finish of request", item->id, "is accepted:");
    if (item->where != Where::Ended) {
      item->finished = true;
      rank_.model.end(*item, reason);
    } else {
      require_equal(
          rank_.engine->fingerprint(), before, "I20: the end of a request that has ended changes the state"
      );
    }
  }

  void set_paused(Item* item, bool paused) {
    if (item == nullptr) return;
    if (paused) {
      rank_.engine->pause(item->id);
    } else {
      rank_.engine->resume(item->id);
    }
    item->pauses += paused ? 1 : 0;
    item->paused = paused;
  }

  void begin_transfer(Random& random) {
    Item* const item = pick(random, [](const Item& i) {
      return i.where != Where::Waiting && i.where != Where::Incoming && i.where != Where::Ended &&
             !i.transfer;
    });
    if (item == nullptr) return;
    rank_.engine->begin_transfer(item->id);
    rank_.model.begin_transfer(*item);
  }

  void end_transfer(Item* item) {
    if (item == nullptr) return;
    if (item->load) {
      rank_.device.load(*item);
    } else if (!rank_.scheduled_ahead) {
      rank_.device.check_transfer(*item);
    }
    rank_.engine->end_transfer(item->id);
    rank_.model.end_transfer(*item);
  }

  static bool is_live(const Item& item) { return item.where != Where::Ended; }

  // One of those that qualify, the latest ones more often.
  template <class Qualifies>
  Item* pick(Random& random, Qualifies qualifies) {
    Items found;
    const auto& items = rank_.model.items;
    for (auto item = items.rbegin(); item != items.rend() && found.size() < 12; ++item) {
      if (qualifies(**item)) found.push_back(item->get());
    }
    return found.empty()
               ? nullptr
               : found[static_cast<std::size_t>(random.below(static_cast<std::int32_t>(found.size())))];
  }

  std::uint64_t new_id() { return ids_.take(); }

  // A request that ends with the model's length may have asked for more.
  RequestLimits limits_of(const Item& item) const {
    const std::uint64_t more = item.limit == limits_.max_model_len ? item.id % 3 * 1'000'000'000'000 : 0;
    return {item.limit - item.prompt_length + static_cast<std::int64_t>(more), item.min_tokens, item.end_ids};
  }

  template <class Call>
  static bool accepted(Call call) {
    try {
      call();
    } catch (const std::invalid_argument&) {
      return false;
    }
    return true;
  }

 private:
  void draw_lengths(Item& item, Random& random, bool prompted) {
    item.id = draw_id(Random(random.next()));
    const std::int32_t most = limits_.max_model_len - 1;
    const std::int32_t least = prompted ? 2 : 1;
    std::int32_t length = 0;
    switch (random.below(5)) {
      case 0:
        length = most - random.below(2);
        break;
      case 1:
        length = limits_.block_size * (1 + random.below(4)) + random.below(3) - 1;
        break;
      case 2:
        length = least + random.below(most);
        break;
      default:
        length = least + random.below(10);
    }
    item.length = std::clamp(length, least, most);
    item.prompt_length = prompted ? 1 + random.below(item.length - 1) : item.length;
    item.first_output = item.length;
    item.stream = Stream(hash(seed_, rank_.model.items.size()), item.length);
    const std::int32_t room = limits_.max_model_len - item.length;
    std::int32_t outputs = 1 + random.below(room);
    if (random.one_in(6)) outputs = 1;
    if (random.one_in(4)) outputs = room;
    item.limit = item.length + outputs;
    item.min_tokens = random.one_in(3) ? random.below(item.limit - item.prompt_length + 1) : 0;
    for (std::int32_t n = random.below(4) - 1; n > 0; --n) item.end_ids.push_back(random.below(kVocabulary));
  }

  // A new one, or that of a request whose end was told and whose blocks came back.
  std::uint64_t draw_id(Random random) {
    Item* old = std::exchange(again_, nullptr);
    if (old == nullptr && random.one_in(8))
      old = pick(random, [](const Item& item) { return item.told && !item.transfer; });
    return old == nullptr ? ids_.take() : std::exchange(old->id, ids_.take());
  }

  static void draw_checkpoints(Item& item, Random& random) {
    for (std::int32_t p = 1 + random.below(8); p < item.prompt_length; p += 1 + random.below(12))
      item.checkpoints.push_back(p);
  }

  void draw_spans(Item& item, Random& random) const {
    for (std::int32_t p = random.below(6); p < item.prompt_length; p += random.below(15)) {
      const std::int32_t most = std::min(limits_.max_num_batched_tokens + 1, item.prompt_length - p);
      const std::int32_t size = 1 + random.below(random.one_in(4) ? most : std::min(most, 8));
      item.spans.push_back({p, p + size});
      p += size;
    }
  }

  Rank& rank_;
  const Limits& limits_;
  Ids ids_;
  std::uint64_t seed_;
  Item* again_ = nullptr;  // whose id the next request takes
};

}  // namespace deepinfer::sim
