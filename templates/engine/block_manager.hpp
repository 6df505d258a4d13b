// Reference-counted ids in a doubly linked free list. One instance holds KV blocks, another the state slots.
#pragma once

#include <array>
#include <cstdint>

namespace deepinfer {

// Ids run from 1 to Count - 1. Id 0 is never handed out: padding rows point at it, so here it is the list's
// sentinel. Ids are taken at the head and given back at the tail, which keeps a freed id untouched for as
// long as possible.
template <std::int32_t Count>
class BlockManager {
  static_assert(Count >= 2, "id 0 is reserved, so a pool needs at least two ids");

 public:
  static constexpr std::int32_t kUsable = Count - 1;

  BlockManager() {
    for (std::int32_t id = 0; id < Count; ++id) {
      next_[id] = id + 1 == Count ? 0 : id + 1;
      previous_[id] = id == 0 ? Count - 1 : id - 1;
    }
  }

  std::int32_t free_count() const { return free_; }
  std::int32_t used_count() const { return kUsable - free_; }
  std::int32_t references(std::int32_t id) const { return references_[id]; }
  std::int32_t pins(std::int32_t id) const { return pins_[id]; }

  // Needs free_count() > 0. The id starts with one reference.
  std::int32_t allocate() {
    const std::int32_t id = next_[0];
    next_[0] = next_[id];
    previous_[next_[id]] = 0;
    references_[id] = 1;
    --free_;
    return id;
  }

  void share(std::int32_t id) { ++references_[id]; }

  void release(std::int32_t id) {
    --references_[id];
    give_back_if_unused(id);
  }

  // A pinned id keeps its content although no table refers to it, as the source of a copy that is still to
  // run.
  void pin(std::int32_t id) { ++pins_[id]; }

  void unpin(std::int32_t id) {
    --pins_[id];
    give_back_if_unused(id);
  }

  // The length of the free list as walked in both directions, or -1 if the links contradict each other.
  std::int32_t walk_free_list() const {
    std::int32_t length = 0;
    for (std::int32_t id = next_[0]; id != 0; id = next_[id]) {
      if (references_[id] != 0 || pins_[id] != 0 || previous_[next_[id]] != id || ++length > kUsable)
        return -1;
    }
    return length;
  }

 private:
  void give_back_if_unused(std::int32_t id) {
    if (references_[id] != 0 || pins_[id] != 0) return;
    const std::int32_t tail = previous_[0];
    next_[tail] = id;
    previous_[id] = tail;
    next_[id] = 0;
    previous_[0] = id;
    ++free_;
  }

  std::array<std::int32_t, Count> next_{};
  std::array<std::int32_t, Count> previous_{};
  std::array<std::int32_t, Count> references_{};
  std::array<std::int32_t, Count> pins_{};
  std::int32_t free_ = kUsable;
};

}  // namespace deepinfer
