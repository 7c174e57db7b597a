#include "src/comm/shm/pending_collective.h"

namespace lockstep {

void PendingCollective::begin(const Operation& operation,
                              const GroupIdentity& identity) {
  shared_.begin(operation, identity);
  deadline_ = Deadline::never();
  step_ = Step::kQueued;
}

void PendingCollective::start_clock() {
  begun_ = Deadline::Clock::now();
  deadline_ = Deadline(operation().timeout);
}

bool PendingCollective::advance(ShmContext& context) {
  if (step_ == Step::kQueued) {
    shared_.publish(context, context.rounds->next_slot());
    context.rounds->arrive();
    step_ = Step::kMeeting;
  }
  if (step_ == Step::kMeeting)
    return context.rounds->all_arrived() && after_meeting(context);
  return step_ == Step::kDirect ? direct_.advance(shared_, context)
                                : staged_.advance(shared_, context);
}

bool PendingCollective::after_meeting(ShmContext& context) {
  shared_.meet(context);
  switch (shared_.place()) {
    case Place::kInline:
      direct_.finish_inline(shared_, context);
      context.rounds->take_back_next_slot();
      return true;
    case Place::kHeap:
      step_ = Step::kDirect;
      direct_.begin(shared_, context);
      return direct_.advance(shared_, context);
    case Place::kStaged:
      if (shared_.updates()) return true;  // every rank decides the same
      step_ = Step::kStaged;
      staged_.begin(shared_, context);
      return staged_.advance(shared_, context);
  }
  return false;
}

std::span<const Buffer> PendingCollective::written_by_peers(
    const ShmContext& context) const {
  if (step_ != Step::kMeeting && step_ != Step::kDirect) return {};
  return shared_.written_by_peers(context);
}

std::vector<int> PendingCollective::missing(const ShmContext& context) const {
  if (step_ == Step::kQueued) return {};
  const std::vector<int> absent = context.rounds->missing();
  return absent.empty() && step_ == Step::kDirect ? direct_.unfinished(context)
                                                  : absent;
}

}  // namespace lockstep
