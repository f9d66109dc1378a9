// A call's hold of the model that answers it: the model stays, and knows the call, until who answers is gone.

#ifndef EBB_SERVER_MODEL_HOLD_H_
#define EBB_SERVER_MODEL_HOLD_H_

#include <grpcpp/grpcpp.h>

#include <utility>

#include "server/call.h"
#include "server/models.h"

namespace ebb {

class ModelHold {
 public:
  // `context`, the call's, outlives this.
  explicit ModelHold(const grpc::CallbackServerContext& context) : context_(context) {}
  ~ModelHold() {
    if (was_taken()) model_->streams().Remove(context_);
  }
  ModelHold(const ModelHold&) = delete;
  ModelHold& operator=(const ModelHold&) = delete;

  // Once, before the model is told of the call, which then has a number there. Returns a lease for who tells it, since
  // this may be gone before that is done.
  ModelLease Take(ModelLease model) {
    model_ = std::move(model);
    id_ = model_->worker().NewCallId();
    model_->streams().Add(context_);
    return model_;
  }
  bool was_taken() const { return model_ != nullptr; }  // not for a call that was refused before it began

  // REQUIRES: was_taken.
  ServedModel& model() const { return *model_; }
  Worker& worker() const { return model_->worker(); }
  CallId id() const { return id_; }

 private:
  const grpc::CallbackServerContext& context_;
  ModelLease model_ = {};
  CallId id_ = 0;
};

}  // namespace ebb

#endif  // EBB_SERVER_MODEL_HOLD_H_
