// A process's claim to one rank of its job.
//
// Before a job's first group is made, every rank takes its seat in the store,
// and rank 0 checks that all have come. This step detects missing ranks,
// processes that claim the same rank, processes of another job (a port used
// twice, a stale environment variable), and settings that differ between ranks,
// and names them to all ranks at once.
//
// The same ranks may gather several times in one store: a group is destroyed
// and another made, or a script runs two programs. Each gathering uses its own
// part of the store, so that the keys of one cannot mislead the next.
//
// Threads: one thread at a time per object.
// Errors:  InvalidArgument for a seat that is taken, for another job, and for
//          settings that differ;
//          Timeout naming the ranks that did not come; PeerFailure naming a
//          rank that came and ended.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/store/store.h"
#include "src/comm/rendezvous/job_fields.h"

namespace lockstep {

// A process's view of its job.
struct JobInfo {
  int rank = 0;
  int world_size = 1;
  // The name that identifies the job, as RankEnvironment::job; "" is a valid
  // name.
  std::string job{};
  bool has_token = false;
  // The settings that must have the same value on all ranks.
  std::vector<JobField> settings{};
};

class Rendezvous {
 public:
  using Seconds = std::chrono::duration<double>;

  // Takes the seat, and returns when every rank has taken its own. Rank 0 waits
  // up to `timeout` for the others, and they wait as long for rank 0.
  Rendezvous(std::shared_ptr<Store> store, const JobInfo& card,
             Seconds timeout);

  // Gives the seat back, for the next gathering.
  ~Rendezvous() { leave(); }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // This gathering's part of the store.
  const std::shared_ptr<Store>& store() const { return store_; }
  // The store that contains that part.
  const std::shared_ptr<Store>& whole_store() const { return whole_store_; }

 private:
  void take();
  [[noreturn]] void miss_gathering();
  void gather();
  void leave_will();
  std::string wait_for_ranks(Deadline deadline);
  std::string give_up_on_missing();
  std::string hear(const std::string& key, Deadline deadline);
  void check_job(const JobInfo& card);
  std::string describe_settings();
  void wait_for_readers() noexcept;
  // Throws the error in `verdict`, if it holds one.
  void heed(const std::string& verdict) const;
  [[noreturn]] void refuse(const std::string& why) const;
  void leave() noexcept;

  const JobInfo card_;
  const Seconds timeout_;
  const std::shared_ptr<Store> whole_store_;
  std::shared_ptr<Store> store_;
};

}  // namespace lockstep
