// Where a prompt that does not fit a step is cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "engine/request.hpp"

namespace deepinfer {

template <class Cfg>
class ChunkCut {
 public:
  // End of the chunk that begins at `computed` and may reach `limit` < length; `computed` if there is none.
  // With the whole token budget of a step there always is one: see check().
  static std::int32_t end(const Request& request, std::int32_t computed, std::int32_t limit) {
    const auto& checkpoints = request.checkpoints;
    auto checkpoint = std::ranges::upper_bound(checkpoints, limit);
    while (checkpoint != checkpoints.begin() && *--checkpoint > computed) {
      if (is_legal(request, computed, *checkpoint)) return *checkpoint;
    }
    for (std::int32_t position = aligned(computed, limit); position > computed; position -= alignment()) {
      if (is_legal(request, computed, position)) return position;
    }
    return computed;
  }

  // Throws std::invalid_argument for spans that some chunk could not avoid to cut.
  static void check(std::span<const ImageSpan> spans, std::int32_t prompt_length, const std::string& who) {
    std::int32_t begin = 0;
    std::int32_t end = 0;
    for (const ImageSpan& span : spans) {
      if (span.start < end || span.end <= span.start || span.end > prompt_length) {
        throw std::invalid_argument(
            who + text(span) + " is empty, out of order or outside the prompt of " +
            std::to_string(prompt_length) + " tokens"
        );
      }
      // Spans without a position between them at which any chunk may end count as one.
      if (end == 0 || span.start - end >= alignment() - 1) begin = span.start;
      end = span.end;
      if (end - begin + 2 * (alignment() - 1) > Cfg::kMaxNumBatchedTokens) {
        throw std::invalid_argument(
            who + text({begin, end}) + " cannot be kept whole in a step of " +
            std::to_string(Cfg::kMaxNumBatchedTokens) + " tokens"
        );
      }
    }
  }

 private:
  // Context-parallel ranks take two mirrored pieces of a chunk each, so the length of any but a prompt's last
  // one is a multiple of this.
  static constexpr std::int32_t alignment() { return Cfg::kCpSize > 1 ? 2 * Cfg::kCpSize : 1; }

  static std::int32_t aligned(std::int32_t computed, std::int32_t position) {
    return position - (position - computed) % alignment();
  }

  static bool is_legal(const Request& request, std::int32_t computed, std::int32_t position) {
    if (aligned(computed, position) != position) return false;
    return std::ranges::none_of(request.image_spans, [position](const ImageSpan& span) {
      return span.start < position && position < span.end;
    });
  }

  static std::string text(const ImageSpan& span) {
    return "the image at " + std::to_string(span.start) + " .. " + std::to_string(span.end);
  }
};

}  // namespace deepinfer
