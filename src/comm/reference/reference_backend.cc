#include "src/comm/reference/reference_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/own_process.h"
#include "src/comm/operation/operation_text.h"
#include "src/comm/operation/peer_checks.h"
#include "src/comm/operation/routes.h"
#include "src/comm/reference/reference_arithmetic.h"
#include "src/comm/rendezvous/formation.h"

namespace lockstep {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

// How long rank 0 waits for the other ranks when it leaves. They may compute
// for hours before they leave, and then need the store no more.
constexpr std::chrono::seconds kOthersLeave{5};

class ReferenceBackend final
    : public Backend,
      public std::enable_shared_from_this<ReferenceBackend> {
 public:
  ReferenceBackend(GroupIdentity identity, std::shared_ptr<Store> store)
      : identity_(std::move(identity)),
        prefix_("group/" + identity_.full_name() + "/reference/"),
        job_store_(std::move(store)),
        store_(with_prefix(job_store_, prefix_)) {}

  ~ReferenceBackend() override {
    if (!broken_) leave();
  }

  std::string_view name() const override { return "reference"; }

  bool supports(const Operation& operation) const override {
    const auto on_cpu = [](const Buffer& buffer) {
      return buffer.device.kind == DeviceKind::kCpu;
    };
    return std::ranges::all_of(operation.inputs, on_cpu) &&
           std::ranges::all_of(operation.outputs, on_cpu);
  }

  Work start(const Operation& operation) override;

  void abort(std::string_view reason) noexcept override {
    cancelled_.cancel();
    tell_gone(reason);
  }

  void leave() noexcept override {
    const bool aborted = cancelled_.cancelled();
    cancelled_.cancel();
    tell_gone(kLeftGroup);
    {
      const std::lock_guard lock(one_at_a_time_);
      if (broken_) return;
      broken_ = group_was_left(identity_);
    }
    if (aborted) return;
    // A sub-group may end long before the store does.
    if (identity_.rank == 0 && identity_.members.empty()) wait_for_readers();
  }

  // Runs `action` unless an earlier one failed; its error ends the group.
  template <class Action>
  void guarded(const Action& action) {
    const std::lock_guard lock(one_at_a_time_);
    if (broken_) std::rethrow_exception(broken_);
    try {
      action();
    } catch (const std::exception& error) {
      broken_ = std::current_exception();
      tell_gone(error.what());
      throw;
    }
  }

 private:
  std::string gone_key(int rank) const { return fmt::format("gone/{}", rank); }

  // Tells the others that this rank takes no further part. The first reason
  // stands.
  void tell_gone(std::string_view reason) noexcept try {
    store_->compare_and_set(gone_key(identity_.rank), std::nullopt,
                            to_bytes(reason), std::chrono::seconds(5));
  } catch (const Error&) {
    // The store is gone too: the others notice that themselves.
  }

  // The store may end with this process, and an operation that is complete here
  // may still be read by others: they leave, or end, after their last one.
  void wait_for_readers() noexcept try {
    const Deadline patience(kOthersLeave);
    for (int rank = 1; rank < identity_.size; ++rank)
      job_store_->wait_any(
          std::array{prefix_ + gone_key(rank), ended_key(rank)}, patience);
  } catch (const Error&) {
    return;  // a rank is late, or the store has ended
  }

  // Reads `key`, which rank `owner` writes; PeerFailure once that rank is gone.
  Bytes read(const std::string& key, int owner, const Operation& operation,
             Deadline deadline) {
    const std::array<std::string, 3> any{
        prefix_ + key, prefix_ + gone_key(owner),
        ended_key(identity_.rank_in_job(owner))};
    std::size_t found = 0;
    try {
      found = job_store_->wait_any(any, deadline, &cancelled_);
      if (found == 0) return store_->get(key, deadline, &cancelled_);
    } catch (const Timeout&) {
      throw Timeout(fmt::format(
          "{} timed out on rank {} of {} (group \"{}\")\n  missing: {}\n"
          "  likely:  it is slow or dead, or called another collective in this "
          "place\n  next:    read rank {}'s log",
          describe(operation), identity_.rank, identity_.size, identity_.name,
          identity_.describe(owner), identity_.rank_in_job(owner)));
    }
    const std::string reason =
        found == 2
            ? "its process ended"
            : to_text(store_->get(gone_key(owner), deadline, &cancelled_));
    const Departure departure = found != 2 && reason == kLeftGroup
                                    ? Departure::kLeft
                                    : Departure::kInError;
    throw PeerFailure(
        owner,
        fmt::format("{} failed on rank {} of {} (group \"{}\"): {} is gone: "
                    "{}{}",
                    describe(operation), identity_.rank, identity_.size,
                    identity_.name, identity_.describe(owner), reason,
                    advice_after(departure, identity_, owner)));
  }

  // Writes a run of bytes under `name`, in chunks, for one reader.
  void put(const std::string& name, const BufferSpan& run, Deadline deadline) {
    const std::size_t bytes = total_bytes(run);
    for (std::size_t at = 0; at < bytes; at += kChunkBytes) {
      Bytes chunk(std::min(kChunkBytes, bytes - at));
      copy_from(run, at, chunk);
      store_->set(fmt::format("{}/{}", name, at), chunk, deadline);
    }
  }

  // Reads what rank `owner` put under `name` and erases it.
  Bytes take(const std::string& name, int owner, std::size_t bytes,
             const Operation& operation, Deadline deadline) {
    Bytes all;
    all.reserve(bytes);
    while (all.size() < bytes) {
      const std::string key = fmt::format("{}/{}", name, all.size());
      const Bytes chunk = read(key, owner, operation, deadline);
      all.insert(all.end(), chunk.begin(), chunk.end());
      store_->erase(key, deadline);
    }
    return all;
  }

  // Every rank's `mine`, in rank order. The last rank to read them erases them.
  std::vector<Bytes> exchange(const std::string& what,
                              std::span<const std::byte> mine,
                              const Operation& operation, Deadline deadline) {
    const auto key = [&](int rank) { return fmt::format("{}/{}", what, rank); };
    store_->set(key(identity_.rank), mine, deadline);
    std::vector<Bytes> all;
    for (int rank = 0; rank < identity_.size; ++rank)
      all.push_back(read(key(rank), rank, operation, deadline));
    const std::string readers = what + "/readers";
    if (store_->add(readers, 1, deadline) == identity_.size) {
      for (int rank = 0; rank < identity_.size; ++rank)
        store_->erase(key(rank), deadline);
      store_->erase(readers, deadline);
    }
    return all;
  }

  void carry_out(const Operation& operation) {
    const Deadline deadline(operation.timeout);
    check_signatures(operation, deadline);
    const Routes routes{operation, identity_.rank, identity_.size};
    for (int to = 0; to < identity_.size; ++to)
      put(route_name(operation, identity_.rank, to), routes.outgoing(to),
          deadline);
    if (reduces(operation.kind))
      reduce(operation, routes.result(), deadline);
    else
      for (int from = 0; from < identity_.size; ++from) {
        const BufferSpan run = routes.incoming(from);
        copy_into(run, 0,
                  take(route_name(operation, from, identity_.rank), from,
                       total_bytes(run), operation, deadline));
      }
  }

  static std::string route_name(const Operation& operation, int from, int to) {
    return fmt::format("{}/{}/{}", operation.sequence, from, to);
  }

  void check_signatures(const Operation& operation, Deadline deadline) {
    const auto tell = [&](const char* what, std::span<const std::byte> mine) {
      return exchange(fmt::format("{}/{}", operation.sequence, what), mine,
                      operation, deadline);
    };
    const AnnouncedCall mine = announced_call_of(operation);
    const auto all = tell("call", std::as_bytes(std::span(&mine, 1)));
    std::vector<AnnouncedCall> calls(all.size());
    for (std::size_t r = 0; r < all.size(); ++r)
      std::memcpy(&calls[r], all[r].data(), sizeof(AnnouncedCall));
    for (const AnnouncedCall& call : calls)
      if (call.signature != mine.signature)
        throw Mismatch(
            describe_mismatch(calls, identity_.rank, identity_.name));
    const std::vector<std::int64_t> counts = counts_of(operation);
    if (counts.empty()) return;
    std::vector<std::vector<std::int64_t>> tables;
    for (const Bytes& bytes :
         tell("counts", std::as_bytes(std::span(counts)))) {
      tables.emplace_back(bytes.size() / sizeof(std::int64_t));
      std::memcpy(tables.back().data(), bytes.data(), bytes.size());
    }
    check_counts(operation, tables, identity_.name);
  }

  void reduce(const Operation& operation, const BufferSpan& result,
              Deadline deadline) {
    const std::size_t bytes = total_bytes(result);
    if (bytes == 0) return;
    std::vector<Bytes> contributions;
    for (int from = 0; from < identity_.size; ++from)
      contributions.push_back(take(route_name(operation, from, identity_.rank),
                                   from, bytes, operation, deadline));
    Bytes combined(bytes);
    reference_reduce(operation.reduction, operation.outputs.front().type,
                     contributions, combined);
    copy_into(result, 0, combined);
  }

  static std::string message_name(int from, int to, int tag,
                                  std::uint64_t number) {
    return fmt::format("message/{}/{}/{}/{}", from, to, tag, number);
  }

  void send(const Operation& operation) {
    const Deadline deadline(operation.timeout);
    const std::string name =
        message_name(identity_.rank, operation.peer, operation.tag,
                     ++sent_[{operation.peer, operation.tag}]);
    put(name, {operation.inputs}, deadline);
    const Signature signature = signature_of(operation);
    store_->set(name, std::as_bytes(std::span(&signature, 1)), deadline);
  }

  // Returns the sender's rank.
  int receive(const Operation& operation, Deadline deadline) {
    const auto next = [&](int from) {
      const auto number = received_[{from, operation.tag}] + 1;
      return message_name(from, identity_.rank, operation.tag, number);
    };
    int from = operation.peer;
    if (from == kAnySource) {
      std::vector<std::string> keys;
      std::vector<int> sources;
      for (int r = 0; r < identity_.size; ++r) {
        if (r == identity_.rank) continue;
        keys.push_back(next(r));
        sources.push_back(r);
      }
      from = sources.at(store_->wait_any(keys, deadline, &cancelled_));
    }
    const std::string name = next(from);
    const Bytes header = read(name, from, operation, deadline);
    Signature signature;
    std::memcpy(&signature, header.data(), sizeof signature);
    check_message(operation, from, signature, identity_.name);
    const BufferSpan run{operation.outputs};
    copy_into(run, 0, take(name, from, total_bytes(run), operation, deadline));
    store_->erase(name, deadline);
    ++received_[{from, operation.tag}];
    return from;
  }

  GroupIdentity identity_;
  const std::string prefix_;
  const std::shared_ptr<Store> job_store_;
  const std::shared_ptr<Store> store_;  // the group's part of it
  Cancellation cancelled_;
  std::mutex one_at_a_time_;
  std::exception_ptr broken_;
  // The number of messages sent to, and received from, each rank with each tag.
  std::map<std::pair<int, int>, std::uint64_t> sent_;
  std::map<std::pair<int, int>, std::uint64_t> received_;

  friend class LateReceive;
};

// A receive, carried out by the first thread that waits for or queries it.
class LateReceive : public PendingWork {
 public:
  LateReceive(std::shared_ptr<ReferenceBackend> backend,
              const Operation& operation)
      : backend_(std::move(backend)),
        buffer_(operation.outputs.front()),
        operation_(operation) {
    operation_.outputs = std::span(&buffer_, 1);
    operation_.label = {};
  }

  void wait(std::uint64_t, std::optional<Deadline> deadline) override {
    const std::lock_guard lock(mutex_);
    if (source_ < 0)
      backend_->guarded([&] {
        source_ = backend_->receive(
            operation_, deadline.value_or(Deadline(operation_.timeout)));
      });
  }

  // A query waits: the reference backend is simple, not fast.
  bool done(std::uint64_t ticket) override {
    try {
      wait(ticket, std::nullopt);
    } catch (const Error&) {
      return true;
    }
    return true;
  }
  std::vector<int> missing(std::uint64_t) override { return {}; }
  int source_rank(std::uint64_t) override {
    const std::lock_guard lock(mutex_);
    return source_;
  }

 private:
  std::shared_ptr<ReferenceBackend> backend_;
  Buffer buffer_;
  Operation operation_;
  std::mutex mutex_;
  int source_ = -1;
};

Work ReferenceBackend::start(const Operation& operation) {
  if (operation.kind == OperationKind::kReceive)
    return Work(std::make_shared<LateReceive>(shared_from_this(), operation),
                0);
  try {
    guarded([&] {
      if (operation.kind == OperationKind::kSend)
        send(operation);
      else
        carry_out(operation);
    });
    return Work();
  } catch (...) {
    return Work::failed(std::current_exception());
  }
}

}  // namespace

std::shared_ptr<Backend> make_reference_backend(const GroupIdentity& identity,
                                                std::shared_ptr<Store> store) {
  return make_shared_in_own_process<ReferenceBackend>(identity,
                                                      std::move(store));
}

}  // namespace lockstep
