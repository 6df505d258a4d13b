// The sequences that hold blocks and a state slot: one place each, max_num_seqs places.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/fixed_list.hpp"

namespace deepinfer {

struct Sequence {
  std::int32_t request = -1;  // index in the RequestTable, -1 while the place is empty
  std::int32_t slot = 0;
  std::int32_t num_blocks = 0;
  std::int32_t computed = 0;        // prompt tokens scheduled so far
  std::int32_t prefill_length = 0;  // tokens to prefill; includes earlier output when it is a recomputation
  std::uint64_t serial = 0;         // unique per occupancy: a frame row of an earlier occupant does not match
  std::uint64_t last_step = 0;      // the last decode step that had this sequence, 0 if none
  std::int32_t last_row = -1;       // its row there
};

template <class Cfg>
class SequenceTable {
 public:
  using Places = FixedList<Cfg::kMaxNumSeqs>;

  SequenceTable() {
    for (std::int32_t place = Cfg::kMaxNumSeqs - 1; place >= 0; --place) empty_.push_back(place);
  }

  Sequence& operator[](std::int32_t place) { return sequences_[place]; }
  const Sequence& operator[](std::int32_t place) const { return sequences_[place]; }

  std::int32_t free_places() const { return empty_.size(); }
  std::int32_t occupied() const { return Cfg::kMaxNumSeqs - empty_.size(); }

  std::span<const std::int32_t> blocks(std::int32_t place) const {
    return {row(place), static_cast<std::size_t>(sequences_[place].num_blocks)};
  }

  void append_block(std::int32_t place, std::int32_t block) {
    blocks_[index(place) + static_cast<std::size_t>(sequences_[place].num_blocks++)] = block;
  }

  // Needs free_places() > 0. The sequence starts as partly prefilled.
  std::int32_t occupy(std::int32_t request, std::int32_t slot, std::int32_t prefill_length) {
    const std::int32_t place = empty_.pop_back();
    sequences_[place] = Sequence{};
    sequences_[place].request = request;
    sequences_[place].slot = slot;
    sequences_[place].prefill_length = prefill_length;
    sequences_[place].serial = ++last_serial_;
    partial.push_back(place);
    return place;
  }

  void vacate(std::int32_t place) {
    partial.remove(place);
    prompted.remove(place);
    running.remove(place);
    sequences_[place] = Sequence{};
    empty_.push_back(place);
  }

  bool holds(std::int32_t place, std::uint64_t serial) const { return sequences_[place].serial == serial; }

  // Each occupied place is in exactly one of these, in order of arrival there (running: as the order policy
  // sorts).
  Places partial;
  Places prompted;
  Places running;

 private:
  static std::size_t index(std::int32_t place) {
    return static_cast<std::size_t>(place) * static_cast<std::size_t>(Cfg::kBlocksPerSeq);
  }
  const std::int32_t* row(std::int32_t place) const { return blocks_.data() + index(place); }

  std::array<Sequence, static_cast<std::size_t>(Cfg::kMaxNumSeqs)> sequences_{};
  std::array<
      std::int32_t, static_cast<std::size_t>(Cfg::kMaxNumSeqs) * static_cast<std::size_t>(Cfg::kBlocksPerSeq)>
      blocks_{};
  Places empty_;
  std::uint64_t last_serial_ = 0;
};

}  // namespace deepinfer
