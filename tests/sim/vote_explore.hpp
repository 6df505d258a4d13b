// Visits every state that a world can reach, breadth first, so that what breaks a rule is told by a shortest
// way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vote_world.hpp"

namespace votecheck {

// Two worlds of one key must behave alike, or the scheduler's fingerprint misses something that decides.
// Whenever a move leads to a known key, the checker's own knowledge of both worlds must be the same; and one
// in `kSample` is expanded too: its moves, what they show and the keys that they lead to must be those of the
// first.
template <class WorldType>
class Explorer {
 public:
  static constexpr std::uint64_t kSample = 8;

  // Throws Broken; `trace` then tells how to get there.
  void run(const Options& options) {
    WorldType first(options);
    visit(std::move(first), kNone, {});
    while (!frontier_.empty()) {
      auto [world, index] = std::move(frontier_.front());
      frontier_.pop_front();
      expand(world, index);
    }
    for (const auto& [world, index] : twins_) compare(world, index);
    check_progress();
  }

  std::size_t states() const { return nodes_.size(); }
  std::uint64_t transitions() const { return transitions_; }
  std::size_t compared() const { return compared_; }

  std::string trace() const {
    std::vector<Move> moves{failing_};
    for (std::size_t i = at_; nodes_[i].parent != kNone; i = nodes_[i].parent)
      moves.push_back(nodes_[i].move);
    std::string text;
    for (auto move = moves.rbegin(); move != moves.rend(); ++move) text += "  " + text_of(*move) + "\n";
    return text;
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  struct Node {
    std::size_t parent = kNone;
    Move move;
    std::size_t next = kNone;  // where proceeding leads
    std::uint64_t known = 0;
    std::uint64_t future = 0;  // digest of all moves, what they show and where they lead
    bool expanded = false;
    bool at_rest = false;
  };

  struct Hash {
    std::size_t operator()(const Digest& digest) const { return digest.low(); }
  };

  std::size_t visit(WorldType&& world, std::size_t parent, const Move& move) {
    const auto [entry, fresh] = index_.try_emplace(world.key(), nodes_.size());
    const std::size_t index = entry->second;
    if (fresh) {
      nodes_.push_back(
          {.parent = parent, .move = move, .known = world.known().low(), .at_rest = world.at_rest()}
      );
      frontier_.emplace_back(std::move(world), index);
      return index;
    }
    require(nodes_[index].known == world.known().low(), "fingerprint: two different states have one key");
    if (transitions_ % kSample == 0) {
      if (nodes_[index].expanded) {
        compare(world, index);
      } else {
        twins_.emplace_back(std::move(world), index);
      }
    }
    return index;
  }

  void expand(const WorldType& world, std::size_t index) {
    Digest future;
    world.list_moves(moves_);
    const std::vector<Move> moves = moves_;
    for (const Move& move : moves) {
      WorldType next = step(world, index, move);
      ++transitions_;
      mix(future, move, next);
      const std::size_t target = visit(std::move(next), index, move);
      if (move.kind == MoveKind::Proceed) nodes_[index].next = target;
    }
    nodes_[index].future = future.low();
    nodes_[index].expanded = true;
  }

  void compare(const WorldType& world, std::size_t index) {
    Digest future;
    ++compared_;
    world.list_moves(moves_);
    for (const Move& move : moves_) mix(future, move, step(world, index, move));
    at_ = index;
    failing_ = {};
    require(future.low() == nodes_[index].future, "fingerprint: two states of one key behave differently");
  }

  WorldType step(const WorldType& world, std::size_t index, const Move& move) {
    at_ = index;
    failing_ = move;
    WorldType next = world;
    next.apply(move);
    return next;
  }

  static void mix(Digest& future, const Move& move, const WorldType& next) {
    future.add(static_cast<std::uint64_t>(move.kind) * 64 + static_cast<std::uint64_t>(move.rank));
    future.add(move.id);
    future.add(next.observed().low());
    future.add(next.key().low());
  }

  // When nothing happens outside, every state comes to rest: no lasso in the successor relation of
  // proceeding.
  void check_progress() {
    constexpr std::size_t kUnknown = 0;
    constexpr std::size_t kFine = ~std::size_t{0};
    std::vector<std::size_t> mark(nodes_.size(), kUnknown);
    for (std::size_t start = 0; start < nodes_.size(); ++start) {
      std::size_t at = start;
      while (mark[at] == kUnknown && !nodes_[at].at_rest) {
        mark[at] = start + 1;
        at = nodes_[at].next;
      }
      at_ = at;
      failing_ = {};
      require(nodes_[at].at_rest || mark[at] != start + 1, "I20: livelock, the group proceeds in a circle");
      for (at = start; mark[at] == start + 1; at = nodes_[at].next) mark[at] = kFine;
      mark[at] = kFine;
    }
  }

  std::unordered_map<Digest, std::size_t, Hash> index_;
  std::vector<Node> nodes_;
  std::deque<std::pair<WorldType, std::size_t>> frontier_;
  std::vector<std::pair<WorldType, std::size_t>> twins_;
  std::vector<Move> moves_;
  std::uint64_t transitions_ = 0;
  std::size_t compared_ = 0;
  std::size_t at_ = 0;
  Move failing_;
};

}  // namespace votecheck
