// Where a prompt that does not fit a step is cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "engine/request.hpp"

namespace deepinfer {

// Chunks of one prompt. `CpSize` ranks take two mirrored pieces of a chunk each, so only the last chunk of a
// prompt may have a length that is no multiple of 2 x CpSize.
template <std::int32_t CpSize, std::int32_t MaxTokens>
class ChunkCut {
 public:
  static constexpr std::int32_t kAlignment = CpSize > 1 ? 2 * CpSize : 1;

  // End of the chunk that begins at `computed` and may reach `limit` < length; `computed` if there is none.
  // `alone`: nothing else is in the step, so the whole token budget is this chunk's.
  static std::int32_t end(
      const Request& request, std::int32_t computed, std::int32_t limit, std::int32_t length, bool alone
  ) {
    const auto& checkpoints = request.checkpoints;
    auto checkpoint = std::ranges::upper_bound(checkpoints, limit);
    while (checkpoint != checkpoints.begin() && *--checkpoint > computed) {
      if (is_legal(request, computed, *checkpoint)) return *checkpoint;
    }
    for (std::int32_t position = aligned(computed, limit); position > computed; position -= kAlignment) {
      if (is_legal(request, computed, position)) return position;
    }
    if (!alone || request.image_spans.empty()) return computed;
    const std::int32_t reach = std::min(length, computed + MaxTokens);
    for (std::int32_t position = limit + 1; position <= reach; ++position) {
      if (position == length || is_legal(request, computed, position)) return position;
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
      if (end == 0 || span.start - end >= kAlignment - 1) begin = span.start;
      end = span.end;
      if (end - begin + 2 * (kAlignment - 1) > MaxTokens) {
        throw std::invalid_argument(
            who + text({begin, end}) + " cannot be kept whole in a step of " + std::to_string(MaxTokens) +
            " tokens"
        );
      }
    }
  }

 private:
  static std::int32_t aligned(std::int32_t computed, std::int32_t position) {
    return position - (position - computed) % kAlignment;
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
