// Carries out the requests of a store's clients, whatever the transport. It
// answers at once or, for a wait, when an awaited key comes into being.
//
// Threads: one thread at a time per object.
// Errors:  an invalid call becomes a refusal; NetworkError for a client that
//          violates the protocol.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/store/key_value_table.h"
#include "src/store/store_protocol.h"

namespace lockstep {

class StoreService {
 public:
  // The owner's number for a connection or a call.
  using Client = std::uint64_t;

  struct Reply {
    Client client;
    Answer answer;
  };

  // Carries out `request`; returns all answers that are now due, to `client`
  // and to clients whose wait has ended. A waiting client may send no other
  // request: NetworkError.
  std::vector<Reply> handle(Client client, const Request& request);

  // Drops the wait of `client` and executes its last will; returns the answers
  // that are due.
  std::vector<Reply> leave(Client client);

  bool waits(Client client) const { return waits_.contains(client); }

 private:
  struct Wait {
    RequestKind kind;
    std::uint32_t id;
    std::vector<std::string> keys;
    // How many of the absent keys must come into being.
    std::size_t awaited = 0;
  };

  using Replies = std::vector<Reply>;

  // The answer to a wait for `keys`, if it is due now.
  template <class Keys>
  std::optional<Bytes> look(RequestKind kind, const Keys& keys) const;
  void park(Client client, const Request& request);
  void await_absent_keys(Client client, Wait& wait);
  void end_wait(Client client, Replies& due);
  void unpark(Client client);
  // Carries out a request that never waits; returns its answer's value.
  Bytes change(Client client, const Request& request, Replies& due);
  void put(std::string_view key, std::span<const std::byte> value,
           Replies& due);

  KeyValueTable table_;
  std::map<Client, Wait> waits_;
  // The same waits, by key.
  std::map<std::string, std::set<Client>, std::less<>> waiting_for_;
  struct Will {
    std::vector<std::string> keys;
    Bytes value;
  };
  std::map<Client, Will> wills_;
};

}  // namespace lockstep
