#include "server/held_output.h"

#include <optional>
#include <utility>

namespace ebb {
namespace {

std::optional<Drawn> CopyOf(const Drawn* drawn) { return drawn == nullptr ? std::nullopt : std::optional(*drawn); }
const Drawn* Pointer(const std::optional<Drawn>& drawn) { return drawn ? &*drawn : nullptr; }

}  // namespace

// `say()` on the journal's thread, unless what it says is not written.
template <typename Say>
void HeldOutput::Hold(Say say) {
  tellings_.push_back({.about = session_, .tell = [say = std::move(say)](const absl::Status& written) mutable {
                         if (written.ok()) say();
                       }});
}

void HeldOutput::Heed(Reader reader) {
  if (reader == Reader::kFull) journal_.ReaderIsFull(call_);
}

Reader HeldOutput::OnBlock(const BlockDone& block) {
  Hold([this, block] { Heed(output_.OnBlock(block)); });
  return Reader::kReady;
}

Reader HeldOutput::OnTokens(const TokensDone& done) {
  Hold([this, done = TokensDone(done), tokens = std::vector<int32_t>(done.tokens.begin(), done.tokens.end()),
        drawn = CopyOf(done.drawn)]() mutable {
    done.tokens = tokens;
    done.drawn = Pointer(drawn);
    Heed(output_.OnTokens(done));
  });
  return Reader::kReady;
}

void HeldOutput::OnScores(std::span<const TokenLogprob> scores) {
  Hold([this, copy = std::vector<TokenLogprob>(scores.begin(), scores.end())] { output_.OnScores(copy); });
}

void HeldOutput::OnDraft(const DraftDone& done) {
  Hold([this, done = DraftDone(done), scores = std::vector<Drawn>(done.scores.begin(), done.scores.end()),
        likeliest = CopyOf(done.likeliest)]() mutable {
    done.scores = scores;
    done.likeliest = Pointer(likeliest);
    output_.OnDraft(done);
  });
}

void HeldOutput::OnEdit(const EditDone& edit) {
  Hold([this, plan = edit.plan, elapsed = edit.elapsed] { output_.OnEdit({.plan = plan, .elapsed = elapsed}); });
}

void HeldOutput::End(const CallEnd& end, bool discard) {
  tellings_.push_back({.about = session_, .tell = [this, end, discard](const absl::Status& written) {
                         const std::unique_ptr<HeldOutput> self(this);
                         output_.End(written.ok() ? end : CallEnd{.status = written}, discard);
                       }});
}

}  // namespace ebb
