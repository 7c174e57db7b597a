// Fake communicators: how ranks find each other, and when their calls meet.
//
// Each rank has a queue of operations. The first of a queue is under way once
// it is at the head of its streams, and each of its calls is carried out as
// soon as its counterparts (all ranks of a collective, the other side of a
// message) are under way too. An operation ends with the last of its calls.
//
// Threads: one thread at a time.
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

#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/fake_gpu/fake_gpu_operation.h"

namespace lockstep {

struct FakeOutcome {
  LockstepGpuResult result = kGpuDone;
  std::string text{};
};

struct FakeComm;

// The ranks of one communicator.
struct FakeClique {
  std::vector<FakeComm*> ranks{};  // null: not yet in, or gone
  std::size_t joined = 0;
  bool given_up = false;  // a rank has left before all had come
  std::string wrong{};    // why it can never form
  // Ended communicators: as in NCCL, their resources are freed when the last of
  // the process ends.
  std::map<LockstepGpuComm*, std::shared_ptr<FakeComm>> ended{};

  bool complete() const { return joined == ranks.size() && !given_up; }
};

// A rank's location as NCCL sees it.
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
  std::optional<std::uint64_t> due{};  // when it is ready, once known
  std::map<std::pair<FakePlace::Sort, int>, std::uint64_t> counts{};  // places
  std::deque<std::shared_ptr<FakeOperation>> operations{};
  // A given operation that is in neither its streams nor `operations` before
  // `launch_due`.
  std::shared_ptr<FakeOperation> launching{};
  std::uint64_t launch_due = 0;
  VectorClock knows{};  // the knowledge of its operations
  FakeOutcome failure{};
  std::uint64_t failure_due = 0;
  bool finalized = false;
  std::uint64_t stop_due = 0;  // when its operations stop, once aborted
};

// The effects of the end of one rank's communicator.
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
  // `id` comes from new_id(). A communicator of a dead device never joins.
  FakeOutcome create(const LockstepGpuCommConfig& config,
                     const FakeLocation& location, LockstepGpuComm** handle);
  FakeOutcome state(LockstepGpuComm* handle);
  // All ranks count as ranks of one process, except those of dead devices. The
  // last rank to end a communicator waits for the operations of all ranks; an
  // earlier rank's operations stop a while after its end.
  FakeEnd abort(LockstepGpuComm* handle);
  FakeOutcome finalize(LockstepGpuComm* handle);
  FakeEnd destroy(LockstepGpuComm* handle);
  // Returns null, and notes a violation, if it has ended.
  std::shared_ptr<FakeComm> find(LockstepGpuComm* handle);
  bool exists(const FakeComm& comm) const;
  std::size_t alive() const { return handles_.size(); }

  // Calls that have not started by then are in no graph.
  void end_capture(FakeCapture& capture);

  // Whether `comm` can be given calls now.
  FakeOutcome check_ready(FakeComm& comm);
  // Returns kGpuNotYet if it starts later.
  FakeOutcome start(FakeComm& comm, std::vector<FakeCall> calls,
                    const VectorClock& host);

  // Starts captured calls at once.
  void replay(FakeComm& comm, std::vector<FakeCall> calls,
              const VectorClock& host);

  void fail(FakeComm& comm, const FakeOutcome& failure);
  void fail_all_of(int device, const FakeOutcome& failure);
  void kill(int device);

  // Carries out one call, or starts one late operation; false if neither is
  // possible.
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
