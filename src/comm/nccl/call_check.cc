#include "src/comm/nccl/call_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/comm/nccl/control_calls.h"

namespace lockstep {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{64} << 10;
constexpr std::string_view kLabel = "what each rank called on its GPU";

template <class T>
Buffer bytes_of(std::vector<T>& elements) {
  return {elements.data(),
          static_cast<std::int64_t>(elements.size() * sizeof(T)),
          DataType::kUInt8};
}

Work gather(Backend& control, const Buffer& input, const Buffer& output,
            ControlSequence& sequence) {
  return control.start({.kind = OperationKind::kAllGather,
                        .inputs = std::span(&input, 1),
                        .outputs = std::span(&output, 1),
                        .sequence = ++sequence,
                        .timeout = kNoDeadline,
                        .label = kLabel});
}

bool complete(const Work& work) {
  if (!work.done()) return false;
  work.wait();  // throws if it failed
  return true;
}

}  // namespace

bool CallCheck::is_wanted(const Operation& operation, OperationCheck check) {
  switch (check) {
    case OperationCheck::kAll:
      return true;
    case OperationCheck::kOff:
      return false;
    case OperationCheck::kSmall:
      break;
  }
  // Uses only values that are the same on all ranks.
  const Signature signature = signature_of(operation);
  return signature.elements * size_of(static_cast<DataType>(signature.type)) <=
         kSmallBytes;
}

CallCheck::CallCheck(const Call& call, Backend& control, int size,
                     ControlSequence& sequence)
    : mine_{announced_call_of(call.operation), call.is_captured ? 1U : 0U},
      all_(is_point_to_point(call.operation.kind)
               ? 1
               : static_cast<std::size_t>(size)),
      my_counts_(counts_of(call.operation)),
      all_counts_(my_counts_.size() * static_cast<std::size_t>(size)) {
  if (is_point_to_point(call.operation.kind))
    tell_receiver(call.operation, control);
  else
    tell_all(control, sequence);
}

void CallCheck::tell_all(Backend& control, ControlSequence& sequence) {
  const Buffer mine{&mine_, sizeof mine_, DataType::kUInt8};
  exchange_ = gather(control, mine, bytes_of(all_), sequence);
  if (!my_counts_.empty())
    exchange_of_counts_ =
        gather(control, bytes_of(my_counts_), bytes_of(all_counts_), sequence);
}

void CallCheck::tell_receiver(const Operation& operation, Backend& control) {
  const bool sends = operation.kind == OperationKind::kSend;
  const Buffer told{sends ? &mine_ : all_.data(), sizeof mine_,
                    DataType::kUInt8};
  exchange_ = start_control_message(control,
                                    {.sends = sends,
                                     .peer = operation.peer,
                                     .tag = kTagOfChecks,
                                     .label = kLabel},
                                    told);
}

bool CallCheck::passed(const Operation& operation, int rank,
                       const std::string& group) {
  if (passed_) return true;
  if (!complete(exchange_)) return false;
  if (operation.kind == OperationKind::kSend) return passed_ = true;
  if (operation.kind == OperationKind::kReceive) {
    check_message(operation, operation.peer, all_.front().call.signature,
                  group);
    return passed_ = true;
  }
  check_all(rank, group);
  if (my_counts_.empty()) return passed_ = true;
  if (!complete(exchange_of_counts_)) return false;
  std::vector<std::vector<std::int64_t>> counts;
  for (auto next = all_counts_.begin(); next != all_counts_.end();
       next += std::ssize(my_counts_))
    counts.emplace_back(next, next + std::ssize(my_counts_));
  check_counts(operation, counts, group);
  return passed_ = true;
}

void CallCheck::check_all(int rank, const std::string& group) const {
  std::vector<AnnouncedCall> calls;
  std::vector<int> captured, carried_out;
  for (const Told& told : all_) {
    const int its = static_cast<int>(calls.size());
    (told.is_captured != 0 ? captured : carried_out).push_back(its);
    calls.push_back(told.call);
  }
  const auto equals_first = [&](const AnnouncedCall& one) {
    return one.signature == calls.front().signature;
  };
  if (!std::ranges::all_of(calls, equals_first))
    throw Mismatch(describe_mismatch(calls, rank, group));
  if (captured.empty() || carried_out.empty()) return;
  throw Mismatch(fmt::format(
      "some ranks of group \"{1}\" capture {0} in a graph, and others carry it "
      "out (seen on rank {2} of {3})\n  captured by ranks {4}, carried out by "
      "ranks {5}\n  likely:  ranks have batches of different shapes, or have "
      "made different numbers of passes\n  next:    capture on every rank, or "
      "on none",
      describe(mine_.call.signature), group, rank, all_.size(),
      fmt::join(captured, ", "), fmt::join(carried_out, ", ")));
}

void CallCheck::settle() noexcept {
  lockstep::settle(exchange_);
  lockstep::settle(exchange_of_counts_);
}

}  // namespace lockstep
