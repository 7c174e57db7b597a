#include "src/comm/hybrid/host_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/comm/hybrid/calls_of_host.h"
#include "src/comm/reduce/reduce_kernels.h"

namespace lockstep {
namespace {

// A rank's call and its elements: always of the same size, so that ranks whose
// calls differ can exchange them.
constexpr std::size_t kRankBytes = 256;
constexpr std::size_t kMostBytes = kRankBytes - sizeof(AnnouncedCall);

// The head of a host's message to another one: whether the calls of the host's
// ranks follow instead of elements, because they differ.
struct Head {
  std::uint64_t differ = 0;
  std::uint64_t reserved = 0;  // elements are aligned for any type
};
constexpr std::size_t kMostInMessage =
    ControlExchange::kInlineBytes - sizeof(Head);

Buffer as_buffer(std::vector<std::byte>& memory) {
  return {.data = memory.data(),
          .count = static_cast<std::int64_t>(memory.size()),
          .type = DataType::kUInt8};
}

AnnouncedCall read_call(const std::byte* from) {
  AnnouncedCall call;
  std::memcpy(&call, from, sizeof call);
  return call;
}

void append(std::vector<std::byte>& to, const std::byte* from,
            std::size_t bytes) {
  to.insert(to.end(), from, from + bytes);
}

// Reads the calls in a message of the host of `ranks`; returns whether there
// are any.
bool read_differing_calls(const std::byte* message,
                          const std::vector<int>& ranks,
                          std::vector<AnnouncedCall>& calls) {
  Head head;
  std::memcpy(&head, message, sizeof head);
  if (head.differ == 0) return false;
  const auto theirs =
      read_calls({message + sizeof head, kMostInMessage}, ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i)
    calls[index_of(ranks[i])] = theirs[i];
  return true;
}

}  // namespace

// One call of run().
struct HostExchange::Call {
  WireCore& core;
  ControlExchange& control;
  const Operation& operation;
  const Deadline deadline;
  const Routes routes;
  const AnnouncedCall own;
  Combine combine = Combine::kNone;
  std::size_t bytes = 0;   // of the elements that one rank brings
  std::size_t result = 0;  // of the result
  bool agrees = true;      // the calls of this host's ranks are equal

  void reduce(std::span<const std::byte* const> sources, std::byte* to) const {
    const auto type = static_cast<DataType>(own.signature.type);
    reduce_kernel(operation.reduction, type)(sources, std::span(&to, 1),
                                             bytes / size_of(type));
  }
};

HostExchange::HostExchange(int rank, const HostMap& hosts, HostGroup& here)
    : rank_(rank),
      hosts_(hosts),
      here_(here),
      host_(index_of(hosts.host_of[index_of(rank)])),
      index_(index_of(hosts.index_of[index_of(rank)])),
      own_(kRankBytes),
      all_(kRankBytes * index_of(here.size())) {
  for (std::size_t host = 0; host < hosts.ranks_of.size(); ++host)
    if (host != host_) others_.push_back(hosts.ranks_of[host].front());
}

bool HostExchange::run(WireCore& core, ControlExchange& control,
                       const Operation& operation, Deadline deadline) {
  Call call{.core = core,
            .control = control,
            .operation = operation,
            .deadline = deadline,
            .routes = {operation, rank_, core.size()},
            .own = announced_call_of(operation)};
  call.combine = choose(call);
  if (call.combine == Combine::kNone) call.bytes = call.result = 0;
  compare_inside(call);
  result_.resize(std::max(call.result, std::size_t{1}));
  if (index_ == 0) {
    compare_hosts(call);
    combine_hosts(call);
    control.finish(deadline);
  }
  spread_inside(call);
  core.saw_all(call.own.signature);
  if (call.combine == Combine::kNone) return false;
  deliver(call);
  return true;
}

// Uses only values that are the same on all ranks, and sets the sizes.
HostExchange::Combine HostExchange::choose(Call& call) const {
  const Operation& operation = call.operation;
  Combine combine = Combine::kNone;
  call.bytes = total_bytes({operation.outputs});
  call.result = call.bytes;
  if (operation.kind == OperationKind::kBarrier ||
      operation.kind == OperationKind::kBroadcast)
    combine = Combine::kPass;
  if (is_reduced_by_host(operation, hosts_)) combine = Combine::kReduce;
  if (operation.kind == OperationKind::kAllGather &&
      operation.division == Division::kEven) {
    combine = Combine::kJoin;
    call.bytes = total_bytes({operation.inputs});
  }
  const bool fits = call.bytes <= kMostBytes && call.result <= kMostInMessage;
  return fits ? combine : Combine::kNone;
}

void HostExchange::compare_inside(Call& call) {
  std::memcpy(own_.data(), &call.own, sizeof call.own);
  if (call.combine != Combine::kNone) {
    const BufferSpan elements{call.routes.source()};
    copy_from(elements, 0,
              std::span(own_).subspan(sizeof call.own, total_bytes(elements)));
  }
  const Buffer own = as_buffer(own_);
  const Buffer all = as_buffer(all_);
  Operation gather =
      within_host(OperationKind::kAllGather, call.operation, call.deadline);
  // A rank of this host may be late while another host is gone.
  const auto check = [&] { call.control.check(peers()); };
  const WireCore::Needed needed(call.core, check);
  gather.inputs = {&own, 1};
  gather.outputs = {&all, 1};
  carry_out(call, gather);
  const std::vector<int>& ranks = hosts_.ranks_of[host_];
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const AnnouncedCall theirs = read_call(&all_[i * kRankBytes]);
    call.core.saw(ranks[i], theirs.signature);
    call.agrees = call.agrees && theirs.signature == call.own.signature;
  }
}

// On the first rank of the host.
void HostExchange::compare_hosts(const Call& call) {
  write_message(call);
  // The ranks of this host have brought their parts: one that gives up now is
  // not the cause.
  const WireCore::Needed needed(
      call.core, [] {}, [&] { return behind_late_ranks(call.control); });
  const std::vector<AnnouncedCall> firsts = call.control.run(
      others_, call.own,
      [this](int, std::span<std::byte> room) {
        std::ranges::copy(message_, room.begin());
        return message_.size();
      },
      call.deadline);
  bool agree = call.agrees;
  std::vector<AnnouncedCall> calls(firsts.size());
  for (std::size_t host = 0; host < hosts_.ranks_of.size(); ++host) {
    const std::vector<int>& ranks = hosts_.ranks_of[host];
    const AnnouncedCall& first = firsts[index_of(ranks.front())];
    for (const int rank : ranks) calls[index_of(rank)] = first;
    if (host == host_)
      for (std::size_t i = 0; i < ranks.size(); ++i)
        calls[index_of(ranks[i])] = read_call(&all_[i * kRankBytes]);
    else if (read_differing_calls(call.control.extra(ranks.front()), ranks,
                                  calls))
      agree = false;
    agree = agree && first.signature == call.own.signature;
  }
  if (!agree)
    throw Mismatch(describe_mismatch(calls, rank_, call.core.identity().name));
}

// The other ranks of the hosts whose first rank has not sent its message: this
// rank is not connected to them.
std::vector<int> HostExchange::behind_late_ranks(
    ControlExchange& control) const {
  std::vector<int> ranks;
  for (const int first : others_) {
    if (control.has_come(first)) continue;
    const auto& all =
        hosts_.ranks_of[index_of(hosts_.host_of[index_of(first)])];
    ranks.insert(ranks.end(), all.begin() + 1, all.end());
  }
  return ranks;
}

// Makes message_: what this host tells every other one, besides its first
// rank's call.
void HostExchange::write_message(const Call& call) {
  Head head;
  message_.resize(sizeof head);
  if (call.agrees) {
    append_part(call);
  } else {
    std::vector<AnnouncedCall> calls;
    for (std::size_t i = 0; i < index_of(here_.size()); ++i)
      calls.push_back(read_call(&all_[i * kRankBytes]));
    head.differ = 1;
    append_calls(message_, calls, kMostInMessage);
  }
  std::memcpy(message_.data(), &head, sizeof head);
}

const std::byte* HostExchange::elements_of(int index) const {
  return &all_[index_of(index) * kRankBytes + sizeof(AnnouncedCall)];
}

// Appends the elements that this host brings to message_.
void HostExchange::append_part(const Call& call) {
  if (call.bytes == 0) return;
  if (call.combine == Combine::kPass) {
    const std::size_t root = index_of(call.operation.root);
    if (index_of(hosts_.host_of[root]) == host_)
      append(message_, elements_of(hosts_.index_of[root]), call.bytes);
    return;
  }
  std::vector<const std::byte*> sources;
  for (int i = 0; i < here_.size(); ++i) sources.push_back(elements_of(i));
  if (call.combine == Combine::kReduce) {
    message_.resize(message_.size() + call.bytes);
    return call.reduce(sources, message_.data() + sizeof(Head));
  }
  for (const std::byte* source : sources) append(message_, source, call.bytes);
}

// Fills in result_ from the parts of all hosts.
void HostExchange::combine_hosts(const Call& call) {
  if (call.result == 0) return;
  std::vector<const std::byte*> parts;
  for (std::size_t host = 0; host < hosts_.ranks_of.size(); ++host) {
    const std::byte* message =
        host == host_ ? message_.data()
                      : call.control.extra(hosts_.ranks_of[host].front());
    parts.push_back(message + sizeof(Head));
  }
  if (call.combine == Combine::kReduce)
    return call.reduce(parts, result_.data());
  if (call.combine == Combine::kPass) {
    const int root_host = hosts_.host_of[index_of(call.operation.root)];
    std::memcpy(result_.data(), parts[index_of(root_host)], call.bytes);
    return;
  }
  for (int rank = 0; rank < call.core.size(); ++rank)
    std::memcpy(&result_[index_of(rank) * call.bytes],
                parts[index_of(hosts_.host_of[index_of(rank)])] +
                    index_of(hosts_.index_of[index_of(rank)]) * call.bytes,
                call.bytes);
}

// Ranks whose calls differ wait here until the group ends: their first rank
// has thrown.
void HostExchange::spread_inside(const Call& call) {
  if (!call.agrees) result_.resize(1);
  const Buffer result = as_buffer(result_);
  Operation spread =
      within_host(OperationKind::kBroadcast, call.operation, call.deadline);
  spread.outputs = {&result, 1};
  carry_out(call, spread);
}

void HostExchange::deliver(const Call& call) const {
  if (call.combine == Combine::kReduce)
    return copy_into(call.routes.result(), 0,
                     std::span(result_).first(call.result));
  if (call.combine == Combine::kPass) {
    if (call.result > 0 && call.operation.root != rank_)
      copy_into({call.operation.outputs}, 0,
                std::span(result_).first(call.result));
    return;
  }
  for (int from = 0; from < call.core.size(); ++from)
    copy_into(
        call.routes.incoming(from), 0,
        std::span(result_).subspan(index_of(from) * call.bytes, call.bytes));
}

void HostExchange::carry_out(const Call& call, Operation operation) {
  operation.attended = true;
  inside_ = here_.start(operation);
  here_.wait(call.core, inside_, call.deadline);
  inside_ = {};
}

}  // namespace lockstep
