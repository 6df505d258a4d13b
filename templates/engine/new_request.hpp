// What a caller hands in as a request, checked before anything changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/chunk.hpp"
#include "engine/engine_api.hpp"
#include "engine/engine_state.hpp"

namespace deepinfer {

template <class Cfg>
class RequestCheck {
 public:
  explicit RequestCheck(std::uint64_t id) : who_("request " + std::to_string(id) + ": ") {}

  [[noreturn]] void fail(const std::string& what) const { throw std::invalid_argument(who_ + what); }

  void free_id(const EngineState<Cfg>& state, std::uint64_t id) const {
    if (state.requests.find(id) >= 0) fail("a request of this id has not ended");
    if (state.is_taken(id)) fail("blocks of an earlier request of this id are still in a transfer");
  }

  void tokens(const char* what, std::span<const std::int32_t> ids) const {
    if (ids.empty()) fail(std::string("the ") + what + " has no tokens");
    if (std::cmp_greater_equal(ids.size(), Cfg::kMaxModelLen)) {
      fail(
          std::string("a ") + what + " of " + std::to_string(ids.size()) +
          " tokens leaves no room for output within max_model_len " + std::to_string(Cfg::kMaxModelLen)
      );
    }
    const auto negative = std::ranges::find_if(ids, [](std::int32_t token) { return token < 0; });
    if (negative != ids.end()) {
      fail(
          std::string(what) + " token " + std::to_string(negative - ids.begin()) + " is " +
          std::to_string(*negative) + ", below 0"
      );
    }
  }

  void limits(std::int64_t max_tokens, std::int64_t min_tokens) const {
    if (max_tokens < 1) fail("max_tokens is " + std::to_string(max_tokens) + ", below 1");
    if (min_tokens < 0 || min_tokens > max_tokens) {
      fail("min_tokens is " + std::to_string(min_tokens) + ", not in 0.." + std::to_string(max_tokens));
    }
  }

  void checkpoints(std::span<const std::int32_t> positions, std::size_t prompt_length) const {
    std::int32_t last = 0;
    for (const std::int32_t position : positions) {
      if (position <= last || std::cmp_greater_equal(position, prompt_length)) {
        fail(
            "checkpoint " + std::to_string(position) + " does not ascend within 1.." +
            std::to_string(prompt_length - 1)
        );
      }
      last = position;
    }
  }

  void image_spans(std::span<const ImageSpan> spans, std::int32_t prompt_length) const {
    ChunkCut<Cfg>::check(spans, prompt_length, who_);
  }

 private:
  std::string who_;
};

template <class Cfg>
Request request_of(
    const RequestLimits& limits, std::uint64_t id, std::span<const std::int32_t> tokens,
    std::size_t prompt_length
) {
  const auto prompt = static_cast<std::int32_t>(prompt_length);
  const std::int64_t longest = Cfg::kMaxModelLen;
  Request request;
  request.id = id;
  request.tokens.assign(tokens.begin(), tokens.end());
  request.prompt_length = prompt;
  request.length_limit =
      static_cast<std::int32_t>(std::min(prompt + std::min(limits.max_tokens, longest), longest));
  request.min_tokens = static_cast<std::int32_t>(std::min(limits.min_tokens, longest));
  request.end_ids.assign(limits.end_ids.begin(), limits.end_ids.end());
  return request;
}

// Throws std::invalid_argument, with the values, for a prompt that can never fit. An engine that only
// prefills yields one token.
template <class Cfg>
Request checked(const EngineState<Cfg>& state, const NewPrompt& prompt) {
  const RequestCheck<Cfg> check(prompt.id);
  check.free_id(state, prompt.id);
  check.tokens("prompt", prompt.tokens);
  check.limits(prompt.limits.max_tokens, prompt.limits.min_tokens);
  check.checkpoints(prompt.checkpoints, prompt.tokens.size());
  check.image_spans(prompt.image_spans, static_cast<std::int32_t>(prompt.tokens.size()));
  Request request = request_of<Cfg>(prompt.limits, prompt.id, prompt.tokens, prompt.tokens.size());
  if constexpr (Cfg::kEngineType == EngineType::Prompt) request.length_limit = request.prompt_length + 1;
  request.checkpoints.assign(prompt.checkpoints.begin(), prompt.checkpoints.end());
  request.image_spans.assign(prompt.image_spans.begin(), prompt.image_spans.end());
  return request;
}

template <class Cfg>
Request checked(const EngineState<Cfg>& state, const NewPrompted& prompted) {
  const RequestCheck<Cfg> check(prompted.id);
  check.free_id(state, prompted.id);
  check.tokens("sequence", prompted.tokens);
  check.limits(prompted.limits.max_tokens, prompted.limits.min_tokens);
  const auto length = static_cast<std::int64_t>(prompted.tokens.size());
  if (prompted.prompt_length < 1 || prompted.prompt_length >= length) {
    check.fail(
        "a prompt of " + std::to_string(prompted.prompt_length) + " tokens among " + std::to_string(length) +
        ": the rest is its output so far, at least one token"
    );
  }
  Request request = request_of<Cfg>(
      prompted.limits, prompted.id, prompted.tokens, static_cast<std::size_t>(prompted.prompt_length)
  );
  if (request.length() >= request.length_limit) {
    check.fail(
        "it has " + std::to_string(request.output_length()) + " output tokens already, and max_tokens is " +
        std::to_string(prompted.limits.max_tokens)
    );
  }
  request.state = RequestState::Incoming;
  return request;
}

}  // namespace deepinfer
