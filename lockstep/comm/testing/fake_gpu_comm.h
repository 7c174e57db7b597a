// Fake communicators: how ranks find each other, and when their calls meet.
//
// Each rank has a queue of operations. The first of a queue is under way once
// it is at the head of its streams, and each of its calls is carried out as
// soon as its counterparts (all ranks of a collective, the other side of a
// message) are under way too. An operation ends with the last of its calls.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/testing/fake_gpu.h"
#include "lockstep/comm/testing/fake_gpu_operation.h"

namespace lockstep {

struct FakeOutcome {
  LockstepGpuResult result = kGpuDone;
  std::string text{};
};

struct FakeComm;

// The ranks of one communicator.
struct FakeClique {
  std::vector<FakeComm*> ranks{};  // null: not yet, or no longer
  std::size_t joined = 0;
  bool given_up = false;  // a rank has left before all had come
  std::string wrong{};    // why it can never be
  // Those that have ended: as in NCCL, what they have is freed when the last of
  // the process does.
  std::map<LockstepGpuComm*, std::shared_ptr<FakeComm>> ended{};

  bool complete() const { return joined == ranks.size() && !given_up; }
};

// Where a rank is, to NCCL.
struct FakeLocation {
  int device = 0;
  int bus = 0;
  std::string host{};
};

struct FakeComm : std::enable_shared_from_this<FakeComm> {
  int rank = 0;
  int device = 0;
  FakeLocation location{};
  std::shared_ptr<FakeClique> clique{};
  std::optional<std::uint64_t> due{};  // of its being ready, once it is known
  std::map<std::pair<FakePlace::Sort, int>, std::uint64_t> counts{};  // places
  std::deque<std::shared_ptr<FakeOperation>> operations{};
  // Given, and in neither its streams nor `operations` before `launch_due`.
  std::shared_ptr<FakeOperation> launching{};
  std::uint64_t launch_due = 0;
  VectorClock knows{};  // what its operations knew
  FakeOutcome failure{};
  std::uint64_t failure_due = 0;
  bool finalized = false;
  std::uint64_t stop_due = 0;  // of what is under way, once it is aborted
};

// What the end of one rank's communicator has brought about.
struct FakeEnd {
  VectorClock knows{};                    // of what has stopped with it
  std::vector<LockstepGpuComm*> freed{};  // all of the process, or none
};

class FakeComms {
 public:
  FakeComms(FakeMemory& memory, FakeStreams& streams, FakeChance& chance,
            const FakeGpuOptions& options)
      : memory_(memory),
        streams_(streams),
        chance_(chance),
        options_(options) {}
  ~FakeComms();
  FakeComms(const FakeComms&) = delete;
  FakeComms& operator=(const FakeComms&) = delete;

  std::string new_id();
  // `id` is new_id()'s. Of a dead device it never joins.
  FakeOutcome create(const LockstepGpuCommConfig& config,
                     const FakeLocation& location, LockstepGpuComm** handle);
  FakeOutcome state(LockstepGpuComm* handle);
  // All ranks are taken to be of one process, but those of devices that are
  // dead. The last that ends a communicator waits for what all of them had
  // under way; what an earlier one had stops a while after.
  FakeEnd abort(LockstepGpuComm* handle);
  FakeOutcome finalize(LockstepGpuComm* handle);
  FakeEnd destroy(LockstepGpuComm* handle);
  // Null, and a violation, if it has ended.
  std::shared_ptr<FakeComm> find(LockstepGpuComm* handle);
  bool exists(const FakeComm& comm) const;
  std::size_t alive() const { return handles_.size(); }

  // Calls that are not started by then are in no graph.
  void end_capture(FakeCapture& capture);

  // Whether `comm` can be given calls now.
  FakeOutcome check_ready(FakeComm& comm);
  // kGpuNotYet if it starts later.
  FakeOutcome start(FakeComm& comm, std::vector<FakeCall> calls,
                    const VectorClock& host);

  // Calls that were captured, at once.
  void replay(FakeComm& comm, std::vector<FakeCall> calls,
              const VectorClock& host);

  void fail(FakeComm& comm, const FakeOutcome& failure);
  void fail_all_of(int device, const FakeOutcome& failure);
  void kill(int device);

  // Carries out one call, or starts one late operation; false if none can be.
  bool step();
  bool all_started() const;
  // Operations that are in no stream yet.
  void for_each_launching(
      const std::function<void(const FakeOperation&)>& look) const;

 private:
  using Cliques = std::set<std::shared_ptr<FakeClique>>;

  void join(FakeComm& comm, std::shared_ptr<FakeClique> clique, int rank);
  void leave(FakeComm& comm);
  bool has_living(const FakeClique& clique) const;
  FakeEnd free(FakeClique& clique);
  static void stop(FakeComm& comm);
  bool stop_one();
  std::string why_not_destroyed(FakeComm& comm);
  FakeOutcome state_of(FakeComm& comm);
  void prepare(FakeComm& comm, std::vector<FakeCall> calls,
               const VectorClock& host);
  bool launch_one();
  void launch(FakeComm& comm);
  bool is_stuck(const FakeComm& comm) const;
  FakeOperation* under_way(const FakeComm* comm) const;
  bool step(FakeClique& clique);
  bool try_call(const std::vector<FakeOperation*>& operations,
                const FakeCall& call);
  void carry_out(const std::vector<FakeOperation*>& operations,
                 const std::vector<FakeCall*>& calls);
  void end_finished(FakeClique& clique);

  FakeMemory& memory_;
  FakeStreams& streams_;
  FakeChance& chance_;
  const FakeGpuOptions& options_;
  FakeHandles<LockstepGpuComm, FakeComm> handles_;
  std::map<std::string, std::shared_ptr<FakeClique>> by_id_;  // null: not used
  Cliques cliques_;
  std::vector<std::shared_ptr<FakeComm>> stopping_;  // aborted
  std::set<int> dead_devices_;
};

}  // namespace lockstep
