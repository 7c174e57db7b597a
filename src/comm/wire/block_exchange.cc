#include "src/comm/wire/block_exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <list>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMessageBytes = std::size_t{4} << 20;
// Shorter stretches are packed, up to this many bytes.
constexpr std::size_t kPackedBytes = std::size_t{64} << 10;
constexpr std::size_t kWindow = 4;  // messages in flight, to or from each rank

// One message: bytes of a run, in place or packed.
struct Piece {
  std::byte* memory = nullptr;  // null: packed
  std::size_t at = 0;
  std::size_t bytes = 0;
};

// Cuts a run into messages. Depends only on the lengths of its stretches, which
// are the same on both ends.
std::vector<Piece> cut(const BufferSpan& run) {
  std::vector<Piece> pieces;
  bool open = false;  // the last piece may grow
  std::size_t at = 0;
  for (BufferCursor cursor(run); cursor.left() > 0;) {
    const bool is_short = cursor.left() < kPackedBytes;
    const std::size_t bytes = std::min(cursor.left(), kMessageBytes);
    if (is_short && open && pieces.back().bytes + bytes <= kPackedBytes) {
      pieces.back().memory = nullptr;
      pieces.back().bytes += bytes;
    } else {
      pieces.push_back({cursor.here(), at, bytes});
    }
    open = is_short;
    at += bytes;
    cursor.advance(bytes);
  }
  return pieces;
}

// The messages to, or from, one rank.
class Stream {
 public:
  enum class Direction { kOut, kIn };

  Stream(WireCore& core, Direction direction, int peer, const BufferSpan& run)
      : core_(core),
        direction_(direction),
        peer_(peer),
        run_(run),
        pieces_(cut(run)) {
    if (direction == Direction::kIn && !pieces_.empty()) core.expect(peer);
  }

  bool finished() const { return settled_ == pieces_.size(); }

  // Makes all possible progress without waiting.
  void advance(int tag) {
    while (!flights_.empty() && flights_.front().request.done()) settle();
    while (next_ < pieces_.size() && flights_.size() < kWindow) post(tag);
  }

  WireCore::Request& oldest() { return flights_.front().request; }

 private:
  struct Flight {
    WireCore::Request request;
    std::byte* memory = nullptr;
    Piece piece;
  };

  void post(int tag) {
    Flight flight{{}, nullptr, pieces_[next_++]};
    const Piece& piece = flight.piece;
    flight.memory = piece.memory != nullptr ? piece.memory : packed(piece);
    const LockstepTransportMessage message{peer_, kChannelCollective, tag,
                                           flight.memory, piece.bytes};
    flight.request = direction_ == Direction::kIn ? core_.receive(message)
                                                  : core_.send(message);
    flights_.push_back(std::move(flight));
  }

  std::byte* packed(const Piece& piece) {
    std::byte* memory = nullptr;
    if (spare_.empty()) {
      memory = core_.scratch().take(kPackedBytes);
    } else {
      memory = spare_.back();
      spare_.pop_back();
    }
    if (direction_ == Direction::kOut)
      copy_from(run_, piece.at, {memory, piece.bytes});
    return memory;
  }

  void settle() {
    Flight& flight = flights_.front();
    if (flight.piece.memory == nullptr) {
      if (direction_ == Direction::kIn)
        copy_into(run_, flight.piece.at, {flight.memory, flight.piece.bytes});
      spare_.push_back(flight.memory);
    }
    flights_.pop_front();
    ++settled_;
    if (direction_ == Direction::kIn && finished()) core_.arrived(peer_);
  }

  WireCore& core_;
  const Direction direction_;
  const int peer_;
  const BufferSpan run_;
  const std::vector<Piece> pieces_;
  std::size_t next_ = 0;
  std::size_t settled_ = 0;
  std::deque<Flight> flights_;
  std::vector<std::byte*> spare_;
};

// Waits for the next message of one stream. Meanwhile the other streams have a
// window of messages in flight.
void wait_for_any(WireCore& core, std::list<Stream>& streams,
                  WireCore::PeerWatch& watch) {
  constexpr auto kTimeout = 2ms;
  if (!streams.front().oldest().wait(kTimeout)) {
    std::vector<int> peers;
    for (Stream& stream : streams) peers.push_back(stream.oldest().peer());
    core.held_up_by(std::move(peers));
    watch.check();
  }
  // Next time it waits for another stream.
  streams.splice(streams.end(), streams, streams.begin());
}

}  // namespace

void exchange_blocks(WireCore& core, const Routes& routes, int tag,
                     Deadline deadline) {
  std::list<Stream> streams;
  for (int step = 1; step < core.size(); ++step) {
    const int to = (core.rank() + step) % core.size();
    const int from = (core.rank() - step + core.size()) % core.size();
    streams.emplace_back(core, Stream::Direction::kIn, from,
                         routes.incoming(from));
    streams.emplace_back(core, Stream::Direction::kOut, to,
                         routes.outgoing(to));
  }
  WireCore::PeerWatch watch(core, deadline);
  while (true) {
    for (Stream& stream : streams) stream.advance(tag);
    std::erase_if(streams, [](const Stream& s) { return s.finished(); });
    if (streams.empty()) return;
    wait_for_any(core, streams, watch);
  }
}

void copy_own_block(const Routes& routes) {
  const BufferSpan to = routes.incoming(routes.rank);
  const std::size_t bytes = total_bytes(to);
  if (bytes == 0) return;
  BufferCursor from(routes.outgoing(routes.rank));
  BufferCursor target(to);
  // Either in place or disjoint, never partly overlapping.
  if (from.here() != target.here()) copy(from, target, bytes);
}

}  // namespace lockstep
