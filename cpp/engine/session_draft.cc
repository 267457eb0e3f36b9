// Drafts without a second model: what followed the text's last few tokens when they stood there before is guessed to
// follow again, and all guesses are computed in one pass over the weights. A guess counts only where the sampler then
// draws that very token from the very logits that it would have had: the text is the same as without.
//
// Between calls the K/V may be ahead of the tokens by guesses nobody has asked for yet. They lie in the open page, are
// sealed and journalled never, and every call but Next lets them go first.
#include <algorithm>
#include <cstring>

#include "engine/impl.h"

namespace kvart {
namespace {

constexpr size_t kLongest = 4, kShortest = 2;  // tokens at the end that must have stood there before

// Up to `most` tokens that followed the newest earlier place of the longest end of the text that has one.
std::vector<int32_t> LookUp(const std::vector<int32_t>& text, size_t most) {
  for (size_t n = kLongest; n >= kShortest; --n) {
    if (text.size() <= n) continue;
    const auto end = text.end() - static_cast<std::ptrdiff_t>(n);
    // Backwards, so that the newest place is found first.
    const auto found = std::find_end(text.begin(), text.end() - 1, end, text.end());
    if (found == text.end() - 1) continue;
    const auto next = found + static_cast<std::ptrdiff_t>(n);
    const auto count = std::min(most, static_cast<size_t>(text.end() - next));
    return {next, next + static_cast<std::ptrdiff_t>(count)};
  }
  return {};
}

}  // namespace

Status Session::Impl::ComputeLastAndDraft() {
  Model::Impl& m = shared();
  const int64_t n = static_cast<int64_t>(tokens.size());
  if (logits_valid || options.draft == 0 || !options.cache || kv->size() != n - 1) return ComputeLast();
  KVART_RETURN_IF_ERROR(m.decoder->SealFullPage(*kv));
  const int64_t most = draft_length > 0 ? draft_length : options.draft;
  const int64_t room = std::min({kv->Room() - 1, ctx - n, most});
  std::vector<int32_t> guesses = room > 0 ? LookUp(tokens, static_cast<size_t>(room)) : std::vector<int32_t>();
  if (guesses.empty()) return ComputeLast();

  const AffinityScope scope(m.decoder->backend().caller_cpus());
  const size_t n_vocab = static_cast<size_t>(m.info.n_vocab);
  std::vector<int32_t> span_tokens = {tokens.back()};
  span_tokens.insert(span_tokens.end(), guesses.begin(), guesses.end());
  draft_logits.resize(span_tokens.size() * n_vocab);
  DecodeSpan span;
  span.sequence = kv.get();
  span.tokens = span_tokens;
  span.all_logits = draft_logits.data();
  const Stopwatch watch;
  KVART_RETURN_IF_ERROR(m.decoder->Forward({&span, 1}));
  draft = std::move(guesses);
  draft_taken = 0;
  logits.assign(draft_logits.begin(), draft_logits.begin() + static_cast<std::ptrdiff_t>(n_vocab));
  logits_valid = true;
  computed_high = std::max(computed_high, n);
  for (Stats* s : {&stats, &m.stats}) {
    s->decode_tokens += 1;
    s->decode_seconds += watch.seconds();
    s->computed_positions += 1;
    s->drafted_tokens += draft.size();
  }
  return Status::Ok();
}

// After a token was drawn and added: the logits behind it, if it was the next guess.
Status Session::Impl::TakeFromDraft() {
  logits_valid = false;
  if (draft.empty()) return Status::Ok();
  if (tokens.back() != draft[draft_taken]) {
    draft_length = std::max<int64_t>(1, static_cast<int64_t>(draft_taken));  // as far as it went this time
    return DropDraft();
  }
  ++draft_taken;
  const size_t n_vocab = logits.size();
  std::memcpy(logits.data(), draft_logits.data() + draft_taken * n_vocab, n_vocab * sizeof(float));
  logits_valid = true;
  computed_high = std::max(computed_high, static_cast<int64_t>(tokens.size()));
  for (Stats* s : {&stats, &shared().stats}) {
    s->decode_tokens += 1;
    s->computed_positions += 1;
    s->accepted_tokens += 1;
  }
  if (draft_taken == draft.size()) {  // all of it: a longer one next time
    draft_length = std::min<int64_t>(options.draft, 2 * static_cast<int64_t>(draft.size()) + 1);
    draft.clear();
  }
  return Status::Ok();
}

Status Session::Impl::DropDraft() {
  if (draft.empty()) return Status::Ok();
  draft.clear();
  // The last token has K/V if its logits were those of a guess; a token that was drawn against the guess has none.
  const int64_t n = static_cast<int64_t>(tokens.size());
  return kv->Rewind(logits_valid ? n : n - 1);
}

}  // namespace kvart
