// The step policy of a COMPLETION engine: it decodes as long as the group has sequences.
#pragma once

#include "engine/decode.hpp"
#include "engine/fingerprint_hash.hpp"
#include "engine/group_flags.hpp"
#include "engine/incoming.hpp"
#include "engine/vote.hpp"

namespace deepinfer {

template <class Cfg, template <class> class Verification, template <class> class Order>
class CompletionStep {
 public:
  using DecodeHalf = Decode<Cfg, Verification, Order>;
  using IncomingHalf = Incoming<Cfg>;

  DecodeHalf decode_half;

  static Verdict begin(const Record* flags, const LocalState&, Record&) {
    return follow(flags, Verdict::Decode);
  }

  static bool work(const LocalState& local) { return local.decodable; }

  static Decision decision() { return {}; }
  static void mix_into(FingerprintHash&) {}
};

}  // namespace deepinfer
