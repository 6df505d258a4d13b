// The step policy of a PROMPT engine: it prefills as long as the group has prompts.
#pragma once

#include "engine/fingerprint_hash.hpp"
#include "engine/group_flags.hpp"
#include "engine/prefill.hpp"
#include "engine/vote.hpp"

namespace deepinfer {

template <class Cfg>
class PromptStep {
 public:
  using PrefillHalf = Prefill<Cfg>;

  static Verdict begin(const Record* flags, const LocalState&, Record&) {
    return follow(flags, Verdict::Attempt);
  }

  // Nothing is voted on: a rank that could schedule nothing runs an empty prompt step.
  static Verdict attempted(bool, Record&) { return Verdict::Prefill; }

  static bool work(const LocalState& local) { return local.want; }

  static Decision decision() { return {}; }
  static void mix_into(FingerprintHash&) {}
};

}  // namespace deepinfer
