// Shows the thread sanitizer what orders the threads of Debian's gRPC, which is built without it.
//
// Unseen, gRPC's locks (abseil's mutexes) order nothing, and all that it hands from thread to thread looks like a race.
// But a definition in the program comes before that of a shared library, so gRPC calls the functions below: each calls
// the real one and tells the sanitizer what it means. Three things order gRPC's threads as far as our code can tell: a
// mutex; that an operation completes after it was started; and the counts that say when a reactor is told of a
// cancellation, and when it is done. Only for tests in the tsan preset (cmake/ebb.cmake).

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"

namespace {

template <typename Function>
Function* Real(const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol));
}

// Tells a reactor of a cancellation, and the sanitizer that it was told before gRPC lets go of the call.
class Cancellation final : public grpc::internal::ServerReactor {
 public:
  Cancellation(grpc::internal::ServerReactor* reactor, void* references) : reactor_(reactor), references_(references) {}

 private:
  void OnDone() override {}
  void OnCancel() override {
    reactor_->OnCancel();
    __tsan_release(references_);
    delete this;
  }

  grpc::internal::ServerReactor* const reactor_;
  void* const references_;
};

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const real = Real<void(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  real(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  static auto* const real = Real<bool(Mutex*)>("_ZN4absl7debian35Mutex7TryLockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Duration)>(
      "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  // Whoever gives the mutex away asks for all who wait, so what is read there is read under it, too.
  const auto ask = [&] {
    __tsan_acquire(this);
    const bool holds = condition.Eval();
    __tsan_release(this);
    return holds;
  };
  __tsan_release(this);  // others have it meanwhile
  const bool holds = real(this, Condition(&ask), timeout);
  __tsan_acquire(this);
  return holds;
}

void Mutex::Unlock() {
  static auto* const real = Real<void(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_release(this);
  real(this);
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const real = Real<void(CondVar*, Mutex*)>("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const real =
      Real<bool(CondVar*, Mutex*, Duration)>("_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

ABSL_NAMESPACE_END
}  // namespace absl

extern "C" grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                                 void* reserved) {
  static auto* const real = Real<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  __tsan_release(tag);
  return real(call, ops, count, tag, reserved);
}

extern "C" grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static auto* const real = Real<decltype(grpc_completion_queue_next)>("grpc_completion_queue_next");
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

extern "C" grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag, gpr_timespec deadline,
                                                  void* reserved) {
  static auto* const real = Real<decltype(grpc_completion_queue_pluck)>("grpc_completion_queue_pluck");
  const grpc_event event = real(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

namespace grpc::internal {

// The last of the conditions for OnCancel was met.
void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  static auto* const real = Real<void(ServerCallbackCall*, ServerReactor*)>(
      "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE");
  __tsan_acquire(&on_cancel_conditions_remaining_);
  real(this, reactor->InternalInlineable() ? reactor : new Cancellation(reactor, &callbacks_outstanding_));
}

// The last reference to the call went.
void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  static auto* const real =
      Real<void(ServerCallbackCall*, bool)>("_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
  __tsan_acquire(&callbacks_outstanding_);
  real(this, inline_ondone);
}

// gRPC's library counts the references to a call of a method that there is not: here as there, the sanitizer sees it
// count.
template class CallbackBidiHandler<ByteBuffer, ByteBuffer>;

}  // namespace grpc::internal
