#include "src/store/request_store.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

Bytes RequestStore::take_value(Answer answer) {
  if (answer.status == AnswerStatus::kRefused)
    throw InvalidArgument(to_text(answer.value));
  return std::move(answer.value);
}

void RequestStore::set(std::string_view key, std::span<const std::byte> value,
                       Deadline deadline) {
  const StoreCall call("set", key, place_);
  call.check(value);
  Request request{.kind = RequestKind::kSet, .keys = {key}};
  request.value = value;
  carry_out(call, request, deadline, nullptr);
}

Bytes RequestStore::get(std::string_view key, Deadline deadline,
                        const Cancellation* cancellation) {
  const StoreCall call("get", key, place_);
  Request request{.kind = RequestKind::kGet, .keys = {key}};
  return carry_out(call, request, deadline, cancellation);
}

std::vector<Bytes> RequestStore::multi_get(std::span<const std::string> keys,
                                           Deadline deadline,
                                           const Cancellation* cancellation) {
  const StoreCall call("multi_get", keys, place_);
  Request request{.kind = RequestKind::kMultiGet};
  request.keys.assign(keys.begin(), keys.end());
  auto values = parse_values(carry_out(call, request, deadline, cancellation));
  if (values.size() != keys.size())
    call.fail_connection(
        fmt::format("the server answers with {} values", values.size()));
  return values;
}

std::size_t RequestStore::wait_any(std::span<const std::string> keys,
                                   Deadline deadline,
                                   const Cancellation* cancellation) {
  const StoreCall call("wait_any", keys, place_);
  Request request{.kind = RequestKind::kWaitAny};
  request.keys.assign(keys.begin(), keys.end());
  const Bytes index = carry_out(call, request, deadline, cancellation);
  return static_cast<std::size_t>(parse_number(index));
}

std::int64_t RequestStore::add(std::string_view key, std::int64_t amount,
                               Deadline deadline) {
  const StoreCall call("add", key, place_);
  Request request{.kind = RequestKind::kAdd, .keys = {key}, .amount = amount};
  return parse_number(carry_out(call, request, deadline, nullptr));
}

Bytes RequestStore::compare_and_set(
    std::string_view key, std::optional<std::span<const std::byte>> expected,
    std::span<const std::byte> desired, Deadline deadline) {
  const StoreCall call("compare_and_set", key, place_);
  if (expected) call.check(*expected);
  call.check(desired);
  Request request{.kind = RequestKind::kCompareAndSet, .keys = {key}};
  request.expected = expected;
  request.value = desired;
  return carry_out(call, request, deadline, nullptr);
}

bool RequestStore::erase(std::string_view key, Deadline deadline) {
  const StoreCall call("erase", key, place_);
  Request request{.kind = RequestKind::kErase, .keys = {key}};
  return parse_number(carry_out(call, request, deadline, nullptr)) != 0;
}

void RequestStore::set_last_will(const std::vector<std::string>& keys,
                                 std::span<const std::byte> value,
                                 Deadline deadline) {
  const StoreCall call("set_last_will", keys, place_);
  call.check(value);
  Request request{.kind = RequestKind::kSetLastWill,
                  .keys = {keys.begin(), keys.end()}};
  request.value = value;
  carry_out(call, request, deadline, nullptr);
}

void RequestStore::withdraw_last_will(Deadline deadline) {
  const StoreCall call("withdraw_last_will", place_);
  Request request{.kind = RequestKind::kWithdrawLastWill};
  carry_out(call, request, deadline, nullptr);
}

}  // namespace lockstep
