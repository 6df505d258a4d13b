// The sequences that hold blocks and a state slot: one place each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/fixed_list.hpp"

namespace deepinfer {

// What every decode step reads comes first and shares a cache line.
template <class Cfg>
struct alignas(64) Sequence {
  using Confidences = std::array<std::uint16_t, static_cast<std::size_t>(Cfg::kNextn)>;

  std::uint64_t serial = 0;     // unique per occupancy: a frame row of an earlier occupant does not match
  std::uint64_t table = 0;      // unique per block table that only grew since
  std::uint64_t last_step = 0;  // the last decode step that had this sequence, 0 if none
  std::int32_t last_row = -1;   // its row there
  std::int32_t last_reach = 0;  // queries that the row has at most
  std::int32_t request = -1;    // index in the RequestTable, -1 while the place is empty or drains
  std::int32_t slot = 0;
  std::int32_t num_blocks = 0;
  std::int32_t prompt_drafts = 0;  // drafts that came with the prompt, until the first decode step takes them
  std::int32_t outputs = 0;        // how many of `confidences` are there
  bool passed_over = false;  // by the last decode step: results of earlier steps say nothing about new drafts
  bool transfer = false;     // its blocks and slot are read or written from outside

  std::array<Confidences, 2> confidences{};  // of the last two outputs, the newest first
  std::array<std::int32_t, static_cast<std::size_t>(Cfg::kNextn)> draft_ids{};
  std::uint64_t id = 0;
  std::int32_t computed = 0;        // prompt tokens scheduled so far
  std::int32_t prefill_length = 0;  // tokens to prefill; includes earlier output when it is a recomputation

  void pass_over() {
    passed_over = true;
    prompt_drafts = 0;
    outputs = 0;
  }

  void remember(std::span<const std::uint16_t> newest) {
    if (passed_over) return;
    confidences[1] = confidences[0];
    std::ranges::copy(newest, confidences[0].begin());
    outputs = outputs == 0 ? 1 : 2;
  }
};

template <class Cfg>
class SequenceTable {
 public:
  // Sequences that drain do not count against max_num_seqs, so there is room for as many again.
  static constexpr std::int32_t kPlaces = 2 * Cfg::kMaxNumSeqs;
  using Places = FixedList<kPlaces>;

  SequenceTable() {
    for (std::int32_t place = kPlaces - 1; place >= 0; --place) empty_.push_back(place);
  }

  Sequence<Cfg>& operator[](std::int32_t place) { return sequences_[place]; }
  const Sequence<Cfg>& operator[](std::int32_t place) const { return sequences_[place]; }

  std::int32_t occupied() const { return kPlaces - empty_.size(); }
  // How many more sequences may join.
  std::int32_t free_places() const {
    return std::min(empty_.size(), Cfg::kMaxNumSeqs - (occupied() - draining.size()));
  }

  std::span<const std::int32_t> blocks(std::int32_t place) const {
    return {row(place), static_cast<std::size_t>(sequences_[place].num_blocks)};
  }

  void append_block(std::int32_t place, std::int32_t block) {
    blocks_[index(place) + static_cast<std::size_t>(sequences_[place].num_blocks++)] = block;
  }

  void replace_block(std::int32_t place, std::int32_t position, std::int32_t block) {
    blocks_[index(place) + static_cast<std::size_t>(position)] = block;
    sequences_[place].table = ++last_serial_;
  }

  // Needs free_places() > 0. The caller puts the place into one of the lists.
  std::int32_t occupy(
      std::uint64_t id, std::int32_t request, std::int32_t slot, std::int32_t prefill_length
  ) {
    const std::int32_t place = empty_.pop_back();
    sequences_[place] = Sequence<Cfg>{};
    sequences_[place].id = id;
    sequences_[place].request = request;
    sequences_[place].slot = slot;
    sequences_[place].prefill_length = prefill_length;
    sequences_[place].serial = sequences_[place].table = ++last_serial_;
    return place;
  }

  // The request has ended, its blocks are still in use outside. Rows of it that still run are dead.
  void drain(std::int32_t place) {
    remove_from_lists(place);
    sequences_[place].request = -1;
    sequences_[place].serial = 0;
    draining.push_back(place);
  }

  void vacate(std::int32_t place) {
    remove_from_lists(place);
    draining.remove(place);
    sequences_[place] = Sequence<Cfg>{};
    empty_.push_back(place);
  }

  // The place that drains blocks of request `id`, or -1.
  std::int32_t find_draining(std::uint64_t id) const {
    for (const std::int32_t place : draining) {
      if (sequences_[place].id == id) return place;
    }
    return -1;
  }

  bool holds(std::int32_t place, std::uint64_t serial) const { return sequences_[place].serial == serial; }

  // Each occupied place is in exactly one of these, in order of arrival there (running: as the order policy
  // sorts).
  Places partial;
  Places loading;
  Places prompted;
  Places running;
  Places draining;

 private:
  static std::size_t index(std::int32_t place) {
    return static_cast<std::size_t>(place) * static_cast<std::size_t>(Cfg::kBlocksPerSeq);
  }
  const std::int32_t* row(std::int32_t place) const { return blocks_.data() + index(place); }

  void remove_from_lists(std::int32_t place) {
    partial.remove(place);
    loading.remove(place);
    prompted.remove(place);
    running.remove(place);
  }

  std::array<Sequence<Cfg>, static_cast<std::size_t>(kPlaces)> sequences_{};
  std::array<std::int32_t, static_cast<std::size_t>(kPlaces) * static_cast<std::size_t>(Cfg::kBlocksPerSeq)>
      blocks_{};
  Places empty_;
  std::uint64_t last_serial_ = 0;
};

}  // namespace deepinfer
