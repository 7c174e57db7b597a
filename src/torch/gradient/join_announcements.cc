#include "src/torch/gradient/join_announcements.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/mutex.h"
#include "src/base/report_text.h"

namespace lockstep {
namespace {

using Kind = HorovodCall::Kind;

// What travels. The check tells it from bytes that a program gathers itself.
struct AnnouncementBytes {
  std::uint64_t check = 0x6a6f696e00000001;
  HorovodCall call;
};
// An odd number, which a program's own all_gather is unlikely to have.
constexpr std::size_t kAnnouncedBytes = sizeof(std::uint64_t) +
                                        offsetof(HorovodCall, name) +
                                        HorovodCall::kNameBytes;

std::vector<std::uint8_t> packed(const HorovodCall& call) {
  const AnnouncementBytes announcement{.call = call};
  std::vector<std::uint8_t> bytes(kAnnouncedBytes);
  std::memcpy(bytes.data(), &announcement, bytes.size());
  return bytes;
}

AnnouncementBytes unpacked(std::span<const std::uint8_t> bytes) {
  AnnouncementBytes announcement;
  std::memcpy(static_cast<void*>(&announcement), bytes.data(), kAnnouncedBytes);
  return announcement;
}

std::string text_of(const HorovodCall& call) {
  switch (call.kind) {
    case Kind::kJoined:
      return "join";
    case Kind::kAllReduce:
      return c10::str("allreduce (", name_of(static_cast<ReduceOp>(call.op)),
                      ") of ", call.elements, " x ",
                      static_cast<at::ScalarType>(call.type), " on ",
                      static_cast<at::DeviceType>(call.device));
    case Kind::kGradients:
      return c10::str("the gradients of DistributedOptimizer ", call.optimizer);
    case Kind::kMoreGradients:
      return c10::str("the later passes of DistributedOptimizer ",
                      call.optimizer);
    case Kind::kOther:
      return call.name;
  }
  return "something unknown";
}

// Whether zeros change no element of the result, but for the divisor of an
// average.
bool takes_zeros(const HorovodCall& call) {
  if (call.kind == Kind::kOther) return false;
  if (call.kind != Kind::kAllReduce) return true;
  const auto op = static_cast<ReduceOp>(call.op);
  return op == ReduceOp::kSum || op == ReduceOp::kAverage;
}

// By group. Groups of the past are taken out as another one is asked for.
class GroupsWithAnnouncements {
 public:
  std::shared_ptr<JoinAnnouncements> of(
      const std::shared_ptr<ProcessGroup>& group) {
    const MutexLock lock(mutex_);
    if (const auto known = known_.find(group.get());
        known != known_.end() && known->second.group.lock() == group)
      return known->second.announcements;
    std::erase_if(known_,
                  [](const auto& item) { return item.second.group.expired(); });
    auto made = std::make_shared<JoinAnnouncements>(group);
    known_[group.get()] = {group, made};
    return made;
  }

 private:
  struct Known {
    std::weak_ptr<ProcessGroup> group;
    std::shared_ptr<JoinAnnouncements> announcements;
  };

  Mutex mutex_;
  std::map<const ProcessGroup*, Known> known_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

HorovodCall HorovodCall::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  HorovodCall call;
  call.kind = Kind::kAllReduce;
  call.op = static_cast<std::int64_t>(op);
  call.type = static_cast<std::int64_t>(tensor.scalar_type());
  call.device = static_cast<std::int64_t>(tensor.device().type());
  call.elements = tensor.numel();
  return call;
}

HorovodCall HorovodCall::other(const std::string& name) {
  HorovodCall call;
  call.kind = Kind::kOther;
  std::memcpy(call.name, name.data(), std::min(name.size(), kNameBytes - 1));
  return call;
}

// Beside the default group: what is known of each group for as long as it
// lasts, wherever its functions are called.
std::shared_ptr<JoinAnnouncements> JoinAnnouncements::of(
    const std::shared_ptr<ProcessGroup>& group) {
  static GroupsWithAnnouncements groups;
  return groups.of(group);
}

JoinAnnouncements::JoinAnnouncements(const std::shared_ptr<ProcessGroup>& group)
    : group_(group), name_(group->name()), last_(group->size() - 1) {}

std::shared_ptr<ProcessGroup> JoinAnnouncements::group() const {
  auto group = group_.lock();
  LOCKSTEP_CHECK(group != nullptr,
                 "the caller keeps the group that it asks about");
  return group;
}

void JoinAnnouncements::allow() {
  group()->barrier({.label = "allow_join"}).wait();
  allowed_ = true;
}

std::int64_t JoinAnnouncements::enroll(
    std::weak_ptr<JoinedGradients> optimizer) {
  optimizers_.push_back(std::move(optimizer));
  return static_cast<std::int64_t>(optimizers_.size());
}

void JoinAnnouncements::announce(const HorovodCall& call) {
  if (!allowed_ || group()->size() == 1) return;
  if (!joined_in_pass_.empty())
    throw InvalidArgument(
        text_of(call) +
        " within a backward pass of a DistributedOptimizer, in " + "which " +
        joined_in_pass_ + " of group \"" + name_ +
        "\" without data can take part in the gradients alone\n"
        "  next:    give every rank as many batches, or call allreduce outside "
        "backward passes and give each optimizer a pass of its own");
  exchange(call);
}

void JoinAnnouncements::announce_gradients(std::int64_t optimizer) {
  if (!allowed_ || group()->size() == 1) return;
  HorovodCall call;
  call.kind = Kind::kGradients;
  call.optimizer = optimizer;
  if (!joined_in_pass_.empty()) announce(call);  // which throws
  joined_in_pass_ = exchange(call).joined;
}

void JoinAnnouncements::announce_question(std::int64_t optimizer) {
  HorovodCall call;
  call.kind = Kind::kMoreGradients;
  call.optimizer = optimizer;
  announce(call);
}

void JoinAnnouncements::use_device_of(const at::Tensor& tensor) {
  devices_.insert_or_assign(tensor.device().type(), tensor.device());
}

// All ranks come to the same end.
JoinAnnouncements::Round JoinAnnouncements::exchange(const HorovodCall& mine) {
  Round round = tell(mine);
  check_same(round);
  check_possible(round);
  if (round.active >= 0) last_ = round.active;
  return round;
}

JoinAnnouncements::Round JoinAnnouncements::tell(const HorovodCall& mine) {
  const auto group = this->group();
  const auto ranks = static_cast<std::size_t>(group->size());
  const std::vector<std::uint8_t> own = packed(mine);
  std::vector<std::uint8_t> told(ranks * kAnnouncedBytes);
  const std::string label = "announcement of " + text_of(mine);
  group->all_gather(view(own), view(told), {.label = label}).wait();
  Round round;
  std::vector<int> joined;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto announcement = unpacked(
        std::span(told).subspan(rank * kAnnouncedBytes, kAnnouncedBytes));
    if (announcement.check != AnnouncementBytes{}.check)
      throw Mismatch(c10::str(
          "rank ", rank, " of group \"", name_,
          "\" gathers bytes of its own where this rank announces ",
          text_of(mine),
          "\n  next:    use hvd functions alone where ranks may join"));
    round.calls.push_back(announcement.call);
    if (announcement.call.kind != Kind::kJoined) {
      round.active = static_cast<int>(rank);
      continue;
    }
    joined.push_back(static_cast<int>(rank));
  }
  if (!joined.empty()) round.joined = name_ranks(joined);
  return round;
}

std::string JoinAnnouncements::lines_of(const Round& round) const {
  std::map<std::string, std::string> ranks_by_text;
  for (std::size_t rank = 0; rank < round.calls.size(); ++rank) {
    std::string& list = ranks_by_text[text_of(round.calls[rank])];
    list += (list.empty() ? "" : ", ") + std::to_string(rank);
  }
  std::string lines;
  for (const auto& [text, ranks] : ranks_by_text)
    lines += "\n  ranks:   " + ranks + ": " + text;
  return lines;
}

void JoinAnnouncements::check_same(const Round& round) const {
  const HorovodCall* common = nullptr;
  for (const HorovodCall& call : round.calls) {
    if (call.kind == Kind::kJoined) continue;
    if (common != nullptr && packed(call) != packed(*common))
      throw Mismatch("the ranks of group \"" + name_ +
                     "\" call different operations" + lines_of(round) +
                     "\n  likely:  the loop is not the same on every rank\n"
                     "  next:    do the same in each step on every rank until "
                     "it joins; only the number of steps may differ");
    common = &call;
  }
}

void JoinAnnouncements::check_possible(const Round& round) const {
  if (round.active < 0 || round.joined.empty()) return;
  const HorovodCall& call = round.calls[static_cast<std::size_t>(round.active)];
  if (takes_zeros(call)) return;
  throw InvalidArgument(
      text_of(call) + " cannot be carried out in group \"" + name_ + "\": " +
      round.joined + " joined, and can take part in sums and averages alone" +
      lines_of(round) +
      "\n  next:    call it before a rank joins, or after join() has returned "
      "on every rank");
}

int JoinAnnouncements::join() {
  if (group()->size() == 1) return 0;
  if (!allowed_)
    throw InvalidArgument(
        "join: group \"" + name_ +
        "\" allows no joins, so that its other ranks ask for none\n"
        "  next:    call allow_join() on every rank, after init()");
  while (true) {
    const Round round = exchange({});
    if (round.active < 0) break;
    take_part(round.calls[static_cast<std::size_t>(round.active)]);
  }
  for (const auto& optimizer : optimizers_)
    if (const auto known = optimizer.lock()) known->forget_passes();
  return std::exchange(last_, group()->size() - 1);
}

void JoinAnnouncements::take_part(const HorovodCall& call) {
  if (call.kind != Kind::kAllReduce) return take_part_in_gradients(call);
  const c10::NoGradGuard no_grad;
  const auto type = static_cast<at::DeviceType>(call.device);
  const auto own = devices_.find(type);
  const at::Device device =
      own == devices_.end() ? at::Device(type) : own->second;
  try {
    const at::Tensor zeros = at::zeros(
        {call.elements}, at::TensorOptions()
                             .dtype(static_cast<at::ScalarType>(call.type))
                             .device(device));
    lockstep::all_reduce(*group(), zeros, static_cast<ReduceOp>(call.op),
                         {.label = "allreduce of a joined rank"})
        .wait();
  } catch (...) {
    group()->abort("rank " + std::to_string(group()->rank()) +
                   ", which has joined, left an allreduce by an exception; "
                   "read its log");
    throw;
  }
}

void JoinAnnouncements::take_part_in_gradients(const HorovodCall& call) {
  const auto number = static_cast<std::size_t>(call.optimizer);
  if (number >= 1 && number <= optimizers_.size())
    if (const auto optimizer = optimizers_[number - 1].lock())
      return optimizer->take_part(call.kind);
  const std::string reason = "rank " + std::to_string(group()->rank()) +
                             " has joined and has no longer the optimizer of " +
                             text_of(call) +
                             "; keep it until join() has returned";
  group()->abort(reason);
  throw InvalidArgument("join: " + reason);
}

void refuse_joins(const std::shared_ptr<ProcessGroup>& group,
                  const char* what) {
  if (group->size() > 1 && JoinAnnouncements::of(group)->is_allowed())
    throw InvalidArgument(
        std::string(what) + " in group \"" + group->name() +
        "\", in which allow_join() lets ranks run out of data unknown to it\n"
        "  next:    use a DistributedOptimizer, or a group of its own "
        "(new_group), or model.join() without allow_join()");
}

}  // namespace lockstep
