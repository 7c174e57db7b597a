#include "src/store/memory_store.h"

#include <poll.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/mutex.h"
#include "src/net/wait.h"
#include "src/net/wake_up.h"
#include "src/store/request_store.h"
#include "src/store/store_service.h"

namespace lockstep {
namespace {

bool is_about_will(RequestKind kind) {
  return kind == RequestKind::kSetLastWill ||
         kind == RequestKind::kWithdrawLastWill;
}

// Every call is a client of a StoreService while it lasts. The call that
// creates a key delivers the answers to the calls that wait for it. These wait
// on an eventfd, because a condition variable could not also watch a
// cancellation.
class MemoryStore final : public RequestStore {
 public:
  MemoryStore() : RequestStore("memory:") {}

 private:
  struct Pending {
    std::optional<WakeUp> wake_up;  // nothing: answered at once
    std::optional<Answer> answer;
  };

  // A call's time as a client: from its request until its answer or its
  // deadline.
  class Visit {
   public:
    Visit(MemoryStore& store, const Request& request, Pending& pending);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    MemoryStore& store_;
    StoreService::Client client_;
  };

  Bytes carry_out(const StoreCall& call, Request& request, Deadline deadline,
                  const Cancellation* cancellation) override;

  Mutex mutex_;
  StoreService service_ LOCKSTEP_GUARDED_BY(mutex_);
  StoreService::Client last_client_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<StoreService::Client, Pending*> pending_ LOCKSTEP_GUARDED_BY(mutex_);
};

MemoryStore::Visit::Visit(MemoryStore& store, const Request& request,
                          Pending& pending)
    : store_(store) {
  const MutexLock lock(store_.mutex_);
  client_ = ++store_.last_client_;
  auto due = store_.service_.handle(client_, request);
  store_.pending_[client_] = &pending;
  for (StoreService::Reply& reply : due) {
    Pending& receiver = *store_.pending_.at(reply.client);
    receiver.answer = std::move(reply.answer);
    if (receiver.wake_up) receiver.wake_up->signal();
  }
}

MemoryStore::Visit::~Visit() {
  const MutexLock lock(store_.mutex_);
  store_.pending_.erase(client_);
  store_.service_.leave(client_);
}

Bytes MemoryStore::carry_out(const StoreCall& call, Request& request,
                             Deadline deadline,
                             const Cancellation* cancellation) {
  if (is_about_will(request.kind)) return {};
  Pending pending;
  if (may_wait(request.kind)) pending.wake_up.emplace();
  WaitResult result = WaitResult::kReady;
  {
    const Visit visit(*this, request, pending);
    if (pending.wake_up)
      result = wait_for(pending.wake_up->descriptor(), POLLIN, deadline,
                        cancellation);
  }
  // An answer that arrives between the wait and the end of the visit counts.
  if (!pending.answer) call.check(result);
  return take_value(std::move(*pending.answer));
}

}  // namespace

std::shared_ptr<Store> make_memory_store() {
  return std::make_shared<MemoryStore>();
}

}  // namespace lockstep
