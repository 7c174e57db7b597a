#include "src/store/store_service.h"

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

Answer refusal(std::uint32_t id, const InvalidArgument& error) {
  return {.id = id,
          .status = AnswerStatus::kRefused,
          .value = to_bytes(error.what())};
}

}  // namespace

std::vector<StoreService::Reply> StoreService::handle(Client client,
                                                      const Request& request) {
  if (waits(client))
    throw NetworkError("a client asks again while it waits for an answer");
  Replies due;
  Answer answer{.id = request.id};
  try {
    if (may_wait(request.kind)) {
      auto found = look(request.kind, request.keys);
      if (!found) {
        park(client, request);
        return due;
      }
      answer.value = std::move(*found);
    } else {
      answer.value = change(client, request, due);
    }
  } catch (const InvalidArgument& error) {
    answer = refusal(request.id, error);
  }
  due.push_back({client, std::move(answer)});
  return due;
}

std::vector<StoreService::Reply> StoreService::leave(Client client) {
  unpark(client);
  Replies due;
  const auto will = wills_.extract(client);
  if (!will.empty())
    for (const std::string& key : will.mapped().keys)
      put(key, will.mapped().value, due);
  return due;
}

template <class Keys>
std::optional<Bytes> StoreService::look(RequestKind kind,
                                        const Keys& keys) const {
  if (kind == RequestKind::kMultiGet) {
    const auto values = table_.find_all(keys);
    if (!values) return std::nullopt;
    return encode_values(*values);
  }
  std::int64_t index = 0;
  for (const std::string_view key : keys) {
    const Bytes* value = table_.find(key);
    if (value != nullptr)
      return kind == RequestKind::kGet ? *value : encode_number(index);
    ++index;
  }
  return std::nullopt;
}

void StoreService::park(Client client, const Request& request) {
  Wait& wait = waits_[client];
  wait.kind = request.kind;
  wait.id = request.id;
  wait.keys.assign(request.keys.begin(), request.keys.end());
  await_absent_keys(client, wait);
}

// A multi_get awaits each absent key, every other call one of them.
void StoreService::await_absent_keys(Client client, Wait& wait) {
  std::size_t absent = 0;
  for (const std::string& key : wait.keys)
    if (table_.find(key) == nullptr && waiting_for_[key].insert(client).second)
      ++absent;
  wait.awaited = wait.kind == RequestKind::kMultiGet ? absent : 1;
}

void StoreService::unpark(Client client) {
  const auto wait = waits_.extract(client);
  if (wait.empty()) return;
  for (const std::string& key : wait.mapped().keys) {
    const auto waiting = waiting_for_.find(key);
    // Already removed if the key exists, or the client named it twice.
    if (waiting == waiting_for_.end()) continue;
    waiting->second.erase(client);
    if (waiting->second.empty()) waiting_for_.erase(waiting);
  }
}

Bytes StoreService::change(Client client, const Request& request,
                           Replies& due) {
  const std::string_view key = request.keys.empty() ? "" : request.keys[0];
  switch (request.kind) {
    case RequestKind::kSet:
      put(key, request.value, due);
      return {};
    case RequestKind::kAdd: {
      const std::int64_t sum = table_.sum(key, request.amount);
      put(key, to_bytes(std::to_string(sum)), due);
      return encode_number(sum);
    }
    case RequestKind::kCompareAndSet: {
      if (table_.holds(key, request.expected)) put(key, request.value, due);
      const Bytes* value = table_.find(key);
      return value == nullptr ? Bytes() : *value;
    }
    case RequestKind::kErase:
      return encode_number(table_.erase(key) ? 1 : 0);
    case RequestKind::kSetLastWill:
      wills_[client] = {{request.keys.begin(), request.keys.end()},
                        {request.value.begin(), request.value.end()}};
      return {};
    case RequestKind::kWithdrawLastWill:
      wills_.erase(client);
      return {};
    case RequestKind::kGet:
    case RequestKind::kWaitAny:
    case RequestKind::kMultiGet:
      break;
  }
  throw NetworkError("a request of a kind that this version does not know");
}

void StoreService::put(std::string_view key, std::span<const std::byte> value,
                       Replies& due) {
  table_.set(key, value);
  const auto found = waiting_for_.find(key);
  if (found == waiting_for_.end()) return;
  const std::set<Client> clients = std::move(found->second);
  waiting_for_.erase(found);
  for (const Client client : clients)
    if (--waits_.at(client).awaited == 0) end_wait(client, due);
}

// All that `client` waited for came into being, the last part now.
void StoreService::end_wait(Client client, Replies& due) {
  Wait& wait = waits_.at(client);
  Answer answer{.id = wait.id};
  try {
    auto value = look(wait.kind, wait.keys);
    // A key of a multi_get may have been erased again.
    if (!value) return await_absent_keys(client, wait);
    answer.value = std::move(*value);
  } catch (const InvalidArgument& error) {
    answer = refusal(wait.id, error);
  }
  unpark(client);
  due.push_back({client, std::move(answer)});
}

}  // namespace lockstep
