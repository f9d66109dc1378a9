// An edit carried out on a session: planned, begun, and its scorer's states made fit for the edited log.
//
// What becomes of the scorer's states (POLICIES 9.3). They lie beside the slots, so those of tokens that stay are as
// they were, also where the token moves; those of sums over queries still hold what the replaced text's queries gave.
// A token that is run again in its slot keeps its state, and its query counts once more. What comes behind all others
// begins with nothing, as in any prompt; what is inserted before tokens that stay begins with the state of the live
// token whose keep score is the median, since nobody behind it can have attended to it yet. States that follow from K,
// V and positions alone are made again (Scorer::Rebuild).

#ifndef EBB_ENGINE_EDIT_SESSION_H_
#define EBB_ENGINE_EDIT_SESSION_H_

#include "absl/status/statusor.h"
#include "engine/edit.h"
#include "engine/policy_swap.h"
#include "engine/session_on_engine.h"

namespace ebb {

// Errors as Engine::PlanEdit states them. O(log + cache).
absl::StatusOr<EditPlan> PlanEditOf(const SessionOnEngine& session, const EditRequest& request);

// As Engine::BeginEdit.
void BeginEditOf(const Device& device, SessionOnEngine& session, const EditPlan& plan);

// A step of the edit has run: closes it, and after the last one the edit.
void CloseEditStep(const Device& device, SessionOnEngine& session);

}  // namespace ebb

#endif  // EBB_ENGINE_EDIT_SESSION_H_
