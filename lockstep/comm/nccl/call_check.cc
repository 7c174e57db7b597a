#include "lockstep/comm/nccl/call_check.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/comm/nccl/control_calls.h"

namespace lockstep {
namespace {

constexpr std::string_view kPlace = "what each rank called on its GPU";

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
                        .place = kPlace});
}

bool complete(const Work& work) {
  if (!work.done()) return false;
  work.wait();  // throws where it went wrong
  return true;
}

}  // namespace

CallCheck::CallCheck(const Operation& operation, Backend& control, int size,
                     ControlSequence& sequence)
    : mine_(signature_of(operation)),
      all_(static_cast<std::size_t>(is_point_to_point(operation.kind) ? 1
                                                                      : size)),
      my_counts_(counts_of(operation)),
      all_counts_(my_counts_.size() * static_cast<std::size_t>(size)) {
  if (is_point_to_point(operation.kind))
    tell_receiver(operation, control);
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
  exchange_ = start_letter(control,
                           {.sends = sends,
                            .peer = operation.peer,
                            .tag = kTagOfChecks,
                            .place = kPlace},
                           told);
}

bool CallCheck::passed(const Operation& operation, int rank,
                       const std::string& group) {
  if (passed_) return true;
  if (!complete(exchange_)) return false;
  if (operation.kind == OperationKind::kSend) return passed_ = true;
  if (operation.kind == OperationKind::kReceive) {
    check_message(operation, operation.peer, all_.front(), group);
    return passed_ = true;
  }
  const auto equals_first = [&](const Signature& one) {
    return one == all_.front();
  };
  if (!std::ranges::all_of(all_, equals_first))
    throw Mismatch(describe_mismatch(all_, rank, group));
  if (my_counts_.empty()) return passed_ = true;
  if (!complete(exchange_of_counts_)) return false;
  std::vector<std::vector<std::int64_t>> counts;
  for (auto next = all_counts_.begin(); next != all_counts_.end();
       next += std::ssize(my_counts_))
    counts.emplace_back(next, next + std::ssize(my_counts_));
  check_counts(operation, counts, group);
  return passed_ = true;
}

void CallCheck::settle() noexcept {
  lockstep::settle(exchange_);
  lockstep::settle(exchange_of_counts_);
}

}  // namespace lockstep
