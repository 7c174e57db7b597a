// When the calls of a communicator's ranks meet, and their effects.
#include <algorithm>
#include <utility>

#include "src/comm/testing/fake_gpu/fake_gpu_capture.h"
#include "src/comm/testing/fake_gpu/fake_gpu_comm.h"

namespace lockstep {
namespace {

using Sort = FakePlace::Sort;

Sort sort_of(LockstepGpuKind kind) {
  if (kind == kGpuSend) return Sort::kSend;
  if (kind == kGpuReceive) return Sort::kReceive;
  return Sort::kCollective;
}

}  // namespace

void FakeComms::prepare(FakeComm& comm, std::vector<FakeCall> calls,
                        const VectorClock& host) {
  for (FakeCall& call : calls) {
    for (const MemoryUse& use : call.uses())
      memory_.check_bounds(use, comm.device, *call.text);
  }
  if (std::string wrong = overlap_within(calls); !wrong.empty())
    memory_.complain(std::move(wrong));
  comm.launching = std::make_shared<FakeOperation>(std::move(calls), host);
}

FakeOutcome FakeComms::start(FakeComm& comm, std::vector<FakeCall> calls,
                             const VectorClock& host) {
  prepare(comm, std::move(calls), host);
  if (comm.clique->ranks.size() == 1) {
    launch(comm);
    return {};
  }
  comm.launch_due = chance_.draw_later();
  return {kGpuNotYet};
}

void FakeComms::replay(FakeComm& comm, std::vector<FakeCall> calls,
                       const VectorClock& host) {
  if (comm.launching)
    memory_.complain("a graph is launched before " +
                     *comm.launching->calls.front().text + " is started");
  prepare(comm, std::move(calls), host);
  launch(comm);
}

void FakeComms::launch(FakeComm& comm) {
  const auto operation = std::move(comm.launching);
  comm.launching = nullptr;
  if (const auto capture = operation->streams.front()->capture)
    return capture->add_calls(comm.shared_from_this(), operation->calls);
  for (FakeCall& call : operation->calls) {
    const Sort sort = sort_of(call.call.kind);
    const int peer = sort == Sort::kCollective ? 0 : call.call.peer;
    call.place = {sort, peer, comm.counts[{sort, peer}]++};
  }
  operation->index();
  comm.operations.push_back(operation);
  operation->due = chance_.draw_due();
  for (const auto& stream : operation->streams) {
    if (stream->destroyed)
      memory_.complain(stream->name() + " is destroyed before " +
                       *operation->calls.front().text + " is started");
    FakeTask task;
    task.kind = FakeTask::Kind::kOperation;
    task.text = operation->calls.front().text;
    task.operation = operation;
    streams_.give(*stream, std::move(task));
  }
}

void FakeComms::end_capture(FakeCapture& capture) {
  for (const auto& [handle, comm] : handles_) {
    if (!comm->launching) continue;
    const FakeCall& call = comm->launching->calls.front();
    if (call.stream->capture.get() != &capture) continue;
    capture.spoil(*call.text + " is not started when the capture ends");
    comm->launching.reset();
  }
}

bool FakeComms::exists(const FakeComm& comm) const {
  return std::any_of(handles_.begin(), handles_.end(),
                     [&](const auto& it) { return it.second.get() == &comm; });
}

bool FakeComms::launch_one() {
  for (const auto& [handle, comm] : handles_) {
    if (!comm->launching || !chance_.is_due(comm->launch_due)) continue;
    launch(*comm);
    return true;
  }
  return false;
}

bool FakeComms::all_started() const {
  return std::none_of(handles_.begin(), handles_.end(), [](const auto& it) {
    return it.second->launching != nullptr;
  });
}

void FakeComms::for_each_launching(
    const std::function<void(const FakeOperation&)>& look) const {
  for (const auto& [handle, comm] : handles_) {
    if (comm->launching) look(*comm->launching);
  }
}

bool FakeComms::is_stuck(const FakeComm& comm) const {
  return dead_devices_.contains(comm.device) || comm.failure.result != kGpuDone;
}

FakeOperation* FakeComms::under_way(const FakeComm* comm) const {
  if (comm == nullptr || comm->operations.empty() || is_stuck(*comm))
    return nullptr;
  FakeOperation* first = comm->operations.front().get();
  return first->is_at_head() && chance_.is_due(first->due) ? first : nullptr;
}

bool FakeComms::step() {
  if (launch_one() || stop_one()) return true;
  const std::vector<std::shared_ptr<FakeClique>> all(cliques_.begin(),
                                                     cliques_.end());
  if (all.empty()) return false;
  const std::size_t first = chance_.below(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (step(*all[(first + i) % all.size()])) return true;
  }
  return false;
}

bool FakeComms::step(FakeClique& clique) {
  if (!clique.complete()) return false;
  std::vector<FakeOperation*> operations;
  std::vector<const FakeCall*> calls;
  for (const FakeComm* comm : clique.ranks) {
    operations.push_back(under_way(comm));
    if (operations.back() == nullptr) continue;
    for (const FakeCall& call : operations.back()->calls) {
      if (!call.done) calls.push_back(&call);
    }
  }
  if (calls.empty()) return false;
  const std::size_t first = chance_.below(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!try_call(operations, *calls[(first + i) % calls.size()])) continue;
    end_finished(clique);
    return true;
  }
  return false;
}

bool FakeComms::try_call(const std::vector<FakeOperation*>& operations,
                         const FakeCall& call) {
  std::vector<FakeOperation*> own;
  std::vector<FakeCall*> met;
  const auto meet = [&](int rank, const FakePlace& place) {
    FakeOperation* operation = operations[static_cast<std::size_t>(rank)];
    FakeCall* its = operation == nullptr ? nullptr : operation->find(place);
    own.push_back(operation);
    met.push_back(its);
    return its != nullptr;
  };
  switch (call.place.sort) {
    case Sort::kReceive:  // found from the sender's end
      return false;
    case Sort::kSend:
      meet(call.rank, call.place);
      if (!meet(call.call.peer, {Sort::kReceive, call.rank, call.place.index}))
        return false;
      break;
    case Sort::kCollective:
      for (int rank = 0; rank < call.size; ++rank) {
        if (!meet(rank, call.place)) return false;
      }
      break;
  }
  const bool all_fit = std::all_of(met.begin(), met.end(), [&](FakeCall* it) {
    return fits(*met.front(), *it);
  });
  if (!all_fit && options_.mismatch == FakeGpuOptions::Mismatch::kHangs)
    return false;
  carry_out(own, met);
  if (!all_fit) {
    for (const FakeCall* it : met) write_garbage(*it, chance_);
  } else if (call.place.sort == Sort::kSend) {
    carry_out_message(*met[0], *met[1]);
  } else {
    carry_out_collective(met);
  }
  return true;
}

void FakeComms::carry_out(const std::vector<FakeOperation*>& operations,
                          const std::vector<FakeCall*>& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    operations[i]->begin();
    const StreamAccess user{calls[i]->stream->actor, operations[i]->knows,
                            calls[i]->text};
    for (const MemoryUse& use : calls[i]->uses()) {
      memory_.use(use, user);
      memory_.call_uses(use, user);
    }
    calls[i]->done = true;
    --operations[i]->left;
  }
  for (std::size_t to = 0; to < calls.size(); ++to) {
    for (std::size_t from = 0; from < calls.size(); ++from) {
      if (comes_after(*calls[to], *calls[from]))
        operations[to]->gained.join(operations[from]->knows);
    }
  }
}

void FakeComms::end_finished(FakeClique& clique) {
  for (FakeComm* comm : clique.ranks) {
    if (comm == nullptr || comm->operations.empty()) continue;
    FakeOperation& first = *comm->operations.front();
    if (first.left != 0) continue;
    comm->knows.join(first.knows);
    comm->knows.join(first.gained);
    first.end();
    comm->operations.pop_front();
  }
}

}  // namespace lockstep
