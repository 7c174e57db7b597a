#include "lockstep/comm/reference/reference_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/comm/reference/reference_arithmetic.h"

namespace lockstep {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

class ReferenceBackend : public Backend {
 public:
  ReferenceBackend(GroupIdentity identity, std::shared_ptr<Store> store)
      : identity_(std::move(identity)),
        store_(with_prefix(std::move(store),
                           "group/" + identity_.name + "/reference/")) {
    store_->set_last_will(gone_key(identity_.rank), to_bytes("left or died"),
                          std::chrono::minutes(5));
  }

  std::string_view name() const override { return "reference"; }

  bool supports(const Operation& operation) const override {
    const auto on_cpu = [](const Buffer& buffer) {
      return buffer.device.kind == DeviceKind::kCpu;
    };
    return std::ranges::all_of(operation.inputs, on_cpu) &&
           std::ranges::all_of(operation.outputs, on_cpu);
  }

  Work start(const Operation& operation) override {
    std::lock_guard lock(one_at_a_time_);
    if (broken_) return Work::failed(broken_);
    try {
      carry_out(operation);
      return Work();
    } catch (...) {
      broken_ = std::current_exception();
      leave("failed in " + describe(operation));
      return Work::failed(broken_);
    }
  }

  void abort(std::string_view reason) noexcept override {
    cancelled_.cancel();
    leave(reason);
  }

 private:
  std::string gone_key(int rank) const { return fmt::format("gone/{}", rank); }

  // Tells the others that this rank takes no further part.
  void leave(std::string_view reason) noexcept try {
    store_->set(gone_key(identity_.rank), to_bytes(reason),
                std::chrono::seconds(5));
  } catch (const Error&) {
    // The store is gone as well: the others see that for themselves.
  }

  // `key` as rank `owner` wrote it; PeerFailure once that rank is gone.
  Bytes read(const std::string& key, int owner, const Operation& operation,
             Deadline deadline) {
    const std::array<std::string, 2> either{key, gone_key(owner)};
    try {
      if (store_->wait_any(either, deadline, &cancelled_) == 0)
        return store_->get(key, deadline, &cancelled_);
    } catch (const Timeout&) {
      throw Timeout(fmt::format(
          "{} timed out on rank {} of {} (group \"{}\")\n  missing: rank {}\n"
          "  likely:  rank {} is slow or dead, or called another collective in "
          "this place\n  next:    read rank {}'s log",
          describe(operation), identity_.rank, identity_.size, identity_.name,
          owner, owner, owner));
    }
    const std::string reason =
        to_text(store_->get(gone_key(owner), deadline, &cancelled_));
    throw PeerFailure(
        owner, fmt::format("{} failed on rank {} of {} (group \"{}\"): rank {} "
                           "is gone ({})\n  next:    read rank {}'s log",
                           describe(operation), identity_.rank, identity_.size,
                           identity_.name, owner, reason, owner));
  }

  // Every rank's `mine`, in rank order. The last rank to have read them erases
  // them.
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
    const std::size_t buffers = operation.outputs.size();
    for (std::size_t i = 0; i < buffers; ++i) {
      const Buffer& source =
          operation.inputs.empty() ? operation.outputs[i] : operation.inputs[i];
      const std::size_t bytes = source.bytes();
      for (std::size_t at = 0; at < bytes; at += kChunkBytes)
        carry_out_chunk(operation, i, at, std::min(kChunkBytes, bytes - at),
                        deadline);
    }
  }

  void check_signatures(const Operation& operation, Deadline deadline) {
    const Signature mine = signature_of(operation);
    const auto all =
        exchange(fmt::format("{}/signature", operation.sequence),
                 std::as_bytes(std::span(&mine, 1)), operation, deadline);
    std::vector<Signature> signatures(all.size());
    for (std::size_t r = 0; r < all.size(); ++r)
      std::memcpy(&signatures[r], all[r].data(), sizeof(Signature));
    for (const Signature& signature : signatures)
      if (signature != mine)
        throw Mismatch(
            describe_mismatch(signatures, identity_.rank, identity_.name));
  }

  void carry_out_chunk(const Operation& operation, std::size_t index,
                       std::size_t at, std::size_t length, Deadline deadline) {
    const Buffer& output = operation.outputs[index];
    const bool gathers = operation.kind == OperationKind::kAllGather;
    const Buffer& source = gathers ? operation.inputs[index] : output;
    const std::span<std::byte> mine(static_cast<std::byte*>(source.data) + at,
                                    length);
    const auto all =
        exchange(fmt::format("{}/{}/{}", operation.sequence, index, at), mine,
                 operation, deadline);
    switch (operation.kind) {
      case OperationKind::kBarrier:
        return;
      case OperationKind::kBroadcast:
        std::ranges::copy(all[static_cast<std::size_t>(operation.root)],
                          mine.begin());
        return;
      case OperationKind::kAllReduce:
        return reference_reduce(operation.reduction, output.type, all, mine);
      case OperationKind::kAllGather:
        for (std::size_t r = 0; r < all.size(); ++r)
          std::ranges::copy(all[r], static_cast<std::byte*>(output.data) +
                                        r * source.bytes() + at);
        return;
    }
  }

  GroupIdentity identity_;
  std::shared_ptr<Store> store_;
  Cancellation cancelled_;
  std::mutex one_at_a_time_;
  std::exception_ptr broken_;
};

}  // namespace

std::shared_ptr<Backend> make_reference_backend(const GroupIdentity& identity,
                                                std::shared_ptr<Store> store) {
  return std::make_shared<ReferenceBackend>(identity, std::move(store));
}

}  // namespace lockstep
