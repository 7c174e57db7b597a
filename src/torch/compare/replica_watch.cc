#include "src/torch/compare/replica_watch.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/report_text.h"
#include "src/comm/group/same_text.h"
#include "src/torch/compare/replica_difference.h"

namespace lockstep {
namespace {

std::string names_in(const NamedTensorList& tensors) {
  std::string names;
  for (const auto& [name, tensor] : tensors) names += name + "\n";
  return names;
}

Fingerprint fingerprint_with_names(const NamedTensorList& tensors) {
  const std::string names = names_in(tensors);
  auto parts = fingerprints_of(tensors);
  parts.push_back(fingerprint_of(std::as_bytes(std::span(names))));
  return fingerprint_of(std::span<const Fingerprint>(parts));
}

constexpr char kUsualOfParameters[] =
    "on some ranks the program changed gradients after backward(), such as by "
    "clipping, gave a parameter other memory, or loaded or changed weights; or "
    "the optimizer's options or state differ between ranks; or ranks compute "
    "with other CPUs or thread counts, which round differently";
constexpr char kUsualOfBuffers[] =
    "forward() registers or replaces buffers on some ranks only";
constexpr char kNext[] =
    "resume from an older checkpoint; compare each pass, with "
    "compare_replicas_every = 1 or ConsistencyReport, to find the first one "
    "that differs; 0 compares none, for replicas that are meant to differ";

}  // namespace

ReplicaWatch::ReplicaWatch(std::int64_t every,
                           std::shared_ptr<ProcessGroup> group, List parameters)
    : every_(every),
      group_(std::move(group)),
      list_parameters_(std::move(parameters)) {
  check_same_text(
      *group_, c10::str("compare_replicas_every ", every, "\n"),
      {.what = "compare their replicas in different passes",
       .likely = "compare_replicas_every is not the same on every rank",
       .next = "set compare_replicas_every to the same number on every rank"});
  if (every < 0)
    throw InvalidArgument(
        c10::str("replicas cannot be compared every ", every,
                 " passes\n  next:    set compare_replicas_every to 1 or more, "
                 "or to 0 to compare none"));
}

bool ReplicaWatch::is_due() const {
  return every_ > 0 && group_->size() > 1 && (pass_ + 1) % every_ == 0;
}

// Copies, since forward() is about to change them.
void ReplicaWatch::buffers_are_equal(const NamedTensorList& buffers) {
  buffers_.emplace();
  for (const auto& [name, tensor] : buffers)
    buffers_->emplace_back("buffer " + name, tensor.detach().clone());
}

std::optional<Work> ReplicaWatch::pass_begins(ProcessGroup& order,
                                              Moment moment) {
  compares_ = is_due();
  ++pass_;
  compared_buffers_ = std::exchange(buffers_, std::nullopt);
  if (!compares_) return std::nullopt;
  Record own{.has_buffers = compared_buffers_ ? 1U : 0U, .moment = moment};
  if (moment != Moment::kAbsent) {
    own.parameters = fingerprint_with_names(list_parameters_());
    if (compared_buffers_)
      own.buffers = fingerprint_with_names(*compared_buffers_);
  }
  records_.assign(static_cast<std::size_t>(order.size()), {});
  auto& mine = records_[static_cast<std::size_t>(order.rank())];
  mine = own;
  return order.all_gather(view_bytes(std::as_bytes(std::span(&mine, 1))),
                          view_bytes(std::as_bytes(std::span(records_))),
                          {.label = "fingerprints of replicas"});
}

void ReplicaWatch::pass_ends(ProcessGroup& order) {
  if (!std::exchange(compares_, false)) return;
  const auto buffers = std::exchange(compared_buffers_, std::nullopt);
  if (!all_equal(&Record::moment) || records_.front().moment == Moment::kAbsent)
    return;
  const bool with_buffers = std::ranges::all_of(records_, &Record::has_buffers);
  if (!all_equal(&Record::parameters))
    throw_difference(order, list_parameters_(), kUsualOfParameters);
  if (with_buffers && !all_equal(&Record::buffers))
    throw_difference(order, *buffers, kUsualOfBuffers);
  last_equal_ = pass_;
}

void ReplicaWatch::compare(ProcessGroup& order) {
  if (const auto work = pass_begins(order, Moment::kStep)) work->wait();
  pass_ends(order);
}

template <class Field>
bool ReplicaWatch::all_equal(Field Record::*field) const {
  return std::ranges::all_of(records_, [&](const Record& record) {
    return record.*field == records_.front().*field;
  });
}

void ReplicaWatch::throw_difference(ProcessGroup& order,
                                    const NamedTensorList& tensors,
                                    const char* usual) const {
  check_same_text(order, names_in(tensors),
                  {.what = "train models with other parameters or buffers",
                   .likely = usual,
                   .next = kNext});
  const auto difference = find_difference(order, tensors);
  if (!difference)
    throw Mismatch(
        c10::str("the replicas of group \"", group_->name(),
                 "\" differed when pass ", pass_,
                 " began, and are the same now\n  likely:  the program writes "
                 "to parameters during backward()\n  next:    ",
                 kNext));
  throw_replicas_differ(
      *group_, *difference,
      {.when = c10::str("in pass ", pass_),
       .since = last_equal_ ? c10::str("after pass ", *last_equal_ - 1)
                            : "since they were wrapped",
       .likely = likely_cause(*difference, usual),
       .next = kNext});
}

std::string likely_cause(const ReplicaDifference& difference,
                         const std::string& usual) {
  const bool one_element =
      difference.elements == 1 && difference.more_tensors == 0;
  if (one_element && difference.differing_bits == 1)
    return "one bit of memory flipped" +
           (difference.ranks_are_fewer ? " on " + name_ranks(difference.ranks)
                                       : std::string(", on one of the two")) +
           ": a fault of that machine's memory, or a stray write";
  return one_element ? "something wrote to this element on one rank" : usual;
}

void throw_replicas_differ(const ProcessGroup& group,
                           const ReplicaDifference& difference,
                           const DifferenceReport& report) {
  throw Mismatch(c10::str(
      "the replicas of group \"", group.name(), "\" differ ", report.when,
      " (seen on rank ", group.rank(), " of ", group.size(), ")",
      "\n  where:   ", describe(difference), "\n  differ:  ",
      difference.ranks_are_fewer ? name_ranks(difference.ranks) + " from most"
                                 : name_ranks(difference.ranks) +
                                       " from the others, without a majority",
      "\n  since:   ", report.since, "\n  likely:  ", report.likely,
      "\n  next:    ", report.next));
}

}  // namespace lockstep
