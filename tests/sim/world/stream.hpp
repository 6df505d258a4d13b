// The modelled language: which token follows a prefix. It is a pure function of the branch and the tokens
// before, so no schedule may change what a request says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "world/basics.hpp"

namespace deepinfer::sim {

inline constexpr std::int32_t kVocabulary = 53;

// Prefix hash with one more token: what a cache entry of the token's position depends on.
inline std::uint64_t extend(std::uint64_t prefix, std::int32_t token) {
  return scramble(prefix * 3 + static_cast<std::uint64_t>(token) + 1);
}

class Stream {
 public:
  Stream() = default;

  // `root` is unique for each request that is not a branch.
  Stream(std::uint64_t root, std::int32_t prompt_length) : branch_(hash(root)), hashes_{hash(root, 1)} {
    reach(prompt_length);
  }

  // The first `length` tokens of `parent`, then words of its own.
  Stream(const Stream& parent, std::int32_t length, std::uint64_t branch) : branch_(hash(branch, 2)) {
    tokens_.assign(parent.tokens_.begin(), parent.tokens_.begin() + length);
    hashes_.assign(parent.hashes_.begin(), parent.hashes_.begin() + length + 1);
  }

  std::int32_t token(std::int32_t position) {
    reach(position + 1);
    return tokens_[static_cast<std::size_t>(position)];
  }

  // Of the tokens before `position`.
  std::uint64_t prefix(std::int32_t position) {
    reach(position);
    return hashes_[static_cast<std::size_t>(position)];
  }

  // The tag of a cache entry at each of the positions 0 .. length - 1.
  std::span<const std::uint64_t> tags(std::int32_t length) {
    reach(length);
    return std::span(hashes_).subspan(1, static_cast<std::size_t>(length));
  }

  std::span<const std::int32_t> tokens(std::int32_t length) {
    reach(length);
    return std::span(tokens_).first(static_cast<std::size_t>(length));
  }

  std::uint64_t branch() const { return branch_; }

 private:
  void reach(std::int32_t length) {
    while (std::cmp_less(tokens_.size(), length)) {
      const std::uint64_t draw = hash(branch_, hashes_.back());
      const auto token = static_cast<std::int32_t>((draw >> 32U) * kVocabulary >> 32U);
      tokens_.push_back(token);
      hashes_.push_back(extend(hashes_.back(), token));
    }
  }

  std::uint64_t branch_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint64_t> hashes_;  // one more than tokens
};

}  // namespace deepinfer::sim
