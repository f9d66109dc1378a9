// A session as one number: what tests of "nothing changed" and "exactly the same" compare.

#ifndef EBB_ENGINE_SESSION_DIGEST_H_
#define EBB_ENGINE_SESSION_DIGEST_H_

#include <cstdint>

#include "engine/session_on_engine.h"

namespace ebb {

// As Engine::Digest states it. What free slots hold is not part of a session.
uint64_t DigestOf(const SessionOnEngine& session, const Ops& ops);

}  // namespace ebb

#endif  // EBB_ENGINE_SESSION_DIGEST_H_
