#include "src/comm/testing/fake_gpu/fake_gpu_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

std::string duplicate_device(const FakeClique& clique) {
  std::map<std::pair<std::string, int>, int> rank_of;  // by host and bus
  for (const FakeComm* comm : clique.ranks) {
    const auto& [device, bus, host] = comm->location;
    const auto [first, is_new] =
        rank_of.emplace(std::pair(host, bus), comm->rank);
    if (!is_new)
      return fmt::format(
          "Duplicate GPU detected : rank {} and rank {} both on CUDA device "
          "{:x}",
          first->second, comm->rank, bus);
  }
  return {};
}

}  // namespace

FakeComms::~FakeComms() {
  // Breaks a cycle: ended communicators hold their cliques.
  for (const auto& clique : cliques_) clique->ended.clear();
}

std::string FakeComms::new_id() {
  std::string id = fmt::format("fake-gpu-id-{}-", by_id_.size());
  while (id.size() < kGpuUniqueIdBytes)
    id.push_back(static_cast<char>('a' + chance_.below(26)));
  by_id_.emplace(id, nullptr);
  return id;
}

void FakeComms::join(FakeComm& comm, std::shared_ptr<FakeClique> clique,
                     int rank) {
  comm.rank = rank;
  comm.clique = std::move(clique);
  if (dead_devices_.contains(comm.device)) return;
  FakeClique& its = *comm.clique;
  its.ranks[static_cast<std::size_t>(rank)] = &comm;
  if (++its.joined == its.ranks.size() && !its.given_up)
    its.wrong = duplicate_device(its);
}

FakeOutcome FakeComms::create(const LockstepGpuCommConfig& config,
                              const FakeLocation& location,
                              LockstepGpuComm** handle) {
  if (config.size < 1 || config.rank < 0 || config.rank >= config.size)
    return {kGpuMisuse,
            fmt::format("there is no rank {} of {}", config.rank, config.size)};
  const auto found = by_id_.find(std::string(config.id, kGpuUniqueIdBytes));
  if (found == by_id_.end())
    return {kGpuMisuse, "the id is not one of unique_id()"};
  if (!found->second) {
    found->second = std::make_shared<FakeClique>();
    found->second->ranks.resize(static_cast<std::size_t>(config.size));
    cliques_.insert(found->second);
  }
  FakeClique& clique = *found->second;
  if (clique.ranks.size() != static_cast<std::size_t>(config.size))
    return {kGpuMisuse, "the ranks give different sizes"};
  if (clique.complete() ||
      (!clique.given_up &&
       clique.ranks[static_cast<std::size_t>(config.rank)] != nullptr))
    return {kGpuMisuse, "the id is used a second time"};
  auto comm = std::make_shared<FakeComm>();
  comm->device = location.device;
  comm->location = location;
  join(*comm, found->second, config.rank);
  *handle = handles_.add(std::move(comm));
  return {kGpuNotYet};
}

std::shared_ptr<FakeComm> FakeComms::find(LockstepGpuComm* handle) {
  auto comm = handles_.find(handle);
  if (!comm) memory_.complain("a communicator is used that does not exist");
  return comm;
}

FakeOutcome FakeComms::state(LockstepGpuComm* handle) {
  const auto comm = find(handle);
  if (!comm) return {kGpuMisuse, "the communicator has ended"};
  return state_of(*comm);
}

FakeOutcome FakeComms::state_of(FakeComm& comm) {
  if (comm.failure.result != kGpuDone && chance_.is_due(comm.failure_due))
    return comm.failure;
  if (!comm.clique->complete()) return {kGpuNotYet};
  if (!comm.clique->wrong.empty()) return {kGpuMisuse, comm.clique->wrong};
  if (!comm.due) comm.due = chance_.draw_due();
  if (!chance_.is_due(*comm.due) || comm.launching) return {kGpuNotYet};
  return {};
}

FakeOutcome FakeComms::check_ready(FakeComm& comm) {
  // Only comm_state() makes it ready: code that never polls must not succeed by
  // luck.
  if (!comm.due && comm.failure.result == kGpuDone)
    return {kGpuMisuse, "comm_state() has not said done yet"};
  if (comm.finalized) return {kGpuMisuse, "the communicator is finalized"};
  FakeOutcome state = state_of(comm);
  if (state.result == kGpuNotYet)
    return {kGpuMisuse, "comm_state() does not say done"};
  return state;
}

void FakeComms::leave(FakeComm& comm) {
  if (!comm.clique->complete()) comm.clique->given_up = true;
  auto& ranks = comm.clique->ranks;
  std::replace(ranks.begin(), ranks.end(), &comm,
               static_cast<FakeComm*>(nullptr));
  const bool empty = std::all_of(ranks.begin(), ranks.end(),
                                 [](const FakeComm* it) { return !it; });
  if (empty) cliques_.erase(comm.clique);
}

bool FakeComms::has_living(const FakeClique& clique) const {
  return std::ranges::any_of(clique.ranks, [&](const FakeComm* comm) {
    return comm != nullptr && !dead_devices_.contains(comm->device);
  });
}

void FakeComms::stop(FakeComm& comm) {
  for (const auto& operation : comm.operations) {
    if (operation->begun) {
      comm.knows.join(operation->knows);
      for (const auto& stream : operation->streams)
        stream->knows.join(operation->knows);
    }
    operation->drop();
  }
  comm.operations.clear();
}

bool FakeComms::stop_one() {
  const auto next = std::ranges::find_if(stopping_, [&](const auto& comm) {
    return chance_.is_due(comm->stop_due);
  });
  if (next == stopping_.end()) return false;
  stop(**next);
  stopping_.erase(next);
  return true;
}

FakeEnd FakeComms::free(FakeClique& clique) {
  FakeEnd end;
  for (const auto& [handle, comm] : std::exchange(clique.ended, {})) {
    stop(*comm);
    std::erase(stopping_, comm);
    end.knows.join(comm->knows);
    end.freed.push_back(handle);
  }
  return end;
}

FakeEnd FakeComms::abort(LockstepGpuComm* handle) {
  const auto comm = handles_.take(handle);
  if (!comm) {
    memory_.complain("a communicator is aborted that does not exist");
    return {};
  }
  const auto clique = comm->clique;
  const bool was_made = clique->complete();
  leave(*comm);
  clique->ended.emplace(handle, comm);
  if (!was_made || !has_living(*clique)) return free(*clique);
  comm->stop_due = chance_.draw_later();
  stopping_.push_back(comm);
  return {};
}

FakeOutcome FakeComms::finalize(LockstepGpuComm* handle) {
  const auto comm = find(handle);
  if (!comm) return {kGpuMisuse, "the communicator has ended"};
  FakeOutcome ready = check_ready(*comm);
  if (ready.result != kGpuDone) return ready;
  if (!comm->operations.empty())
    memory_.complain("a communicator is finalized before " +
                     *comm->operations.front()->calls.front().text +
                     " is done");
  comm->finalized = true;
  comm->due = chance_.draw_later();
  return {kGpuNotYet};
}

// "" or the condition that a destroy would wait for.
std::string FakeComms::why_not_destroyed(FakeComm& comm) {
  if (!comm.operations.empty())
    return *comm.operations.front()->calls.front().text + " is done";
  if (!comm.clique->complete()) return "it is made";
  if (!comm.finalized || state_of(comm).result == kGpuNotYet)
    return "it is finalized";
  for (const FakeComm* other : comm.clique->ranks)
    if (other != nullptr && !other->finalized)
      return fmt::format("rank {} has finalized it", other->rank);
  return {};
}

FakeEnd FakeComms::destroy(LockstepGpuComm* handle) {
  const auto comm = handles_.find(handle);
  if (!comm) {
    memory_.complain("a communicator is destroyed that does not exist");
    return {};
  }
  if (const std::string why = why_not_destroyed(*comm); !why.empty())
    memory_.complain("a communicator is destroyed before " + why);
  return abort(handle);
}

void FakeComms::fail(FakeComm& comm, const FakeOutcome& failure) {
  comm.failure = failure;
  comm.failure_due = chance_.draw_later();
}

void FakeComms::fail_all_of(int device, const FakeOutcome& failure) {
  for (const auto& [handle, comm] : handles_) {
    if (comm->device == device) fail(*comm, failure);
  }
}

void FakeComms::kill(int device) { dead_devices_.insert(device); }

}  // namespace lockstep
