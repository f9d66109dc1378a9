// The output of a call whose session is journaled: what it is given waits until the journal says that it is written,
// and goes to the real output on the journal's thread. Of a session whose journal failed it says nothing but that.

#ifndef EBB_SERVER_HELD_OUTPUT_H_
#define EBB_SERVER_HELD_OUTPUT_H_

#include <memory>
#include <span>
#include <vector>

#include "server/call.h"
#include "server/journal.h"

namespace ebb {

class HeldOutput final : public CallOutput {
 public:
  // The worker's thread. `tellings` is where the worker puts what is to be said; it destroys itself with its End.
  HeldOutput(CallId call, CallOutput& output, Journal& journal, std::vector<JournalBatch::Telling>& tellings)
      : call_(call), output_(output), journal_(journal), tellings_(tellings) {}

  // The session that is written to; until then, none.
  void SetSession(SessionId session) { session_ = session; }

  Reader OnBlock(const BlockDone& block) override;
  Reader OnTokens(const TokensDone& tokens) override;
  void OnScores(std::span<const TokenLogprob> scores) override;
  void OnDraft(const DraftDone& draft) override;
  void OnEdit(const EditDone& edit) override;
  CallOutput* Branch(size_t index) override { return output_.Branch(index); }
  void End(const CallEnd& end, bool discard) override;

 private:
  template <typename Say>
  void Hold(Say say);
  void Heed(Reader reader);

  const CallId call_;
  CallOutput& output_;
  Journal& journal_;
  std::vector<JournalBatch::Telling>& tellings_;
  SessionId session_ = 0;
};

}  // namespace ebb

#endif  // EBB_SERVER_HELD_OUTPUT_H_
