// What the plug-in's processes send each other: packets, each a header and,
// where it carries a message, the message's bytes.
//
// All packets between two processes travel with one tag of MPI's, and so in
// order. A long message is offered by a packet, accepted by another that names
// a tag, and streamed with that tag once its receiver has a place for it.
//
// Threads: plain data.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace lockstep {

// Which group, on whichever process: a hash of its name and members, and how
// many of those there were before it.
struct MpiGroupId {
  std::uint64_t members = 0;
  std::uint64_t turn = 0;
  auto operator<=>(const MpiGroupId&) const = default;
};

enum class MpiPacketKind : std::int32_t {
  kMessage = 0,  // all of a short message
  kOffer = 1,    // a long one is ready
  kAccept = 2,   // and may be sent, with the stream tag
  kLeft = 3,     // the sender leaves the group in good order
  kClosed = 4,   // the sender has broken with the group
  // Of no group:
  kExiting = 5,  // to world rank 0: this process is ready for MPI's end
  kAllExit = 6,  // and from it: so are all
};

struct MpiPacket {
  MpiGroupId group{};
  std::int32_t from = 0;  // rank in the group
  MpiPacketKind kind = MpiPacketKind::kMessage;
  std::int32_t channel = 0;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;  // of the message
  // The offering process's number for it, also in the answer.
  std::uint64_t offer = 0;
  std::int32_t stream_tag = 0;
  std::int32_t reserved = 0;
};
static_assert(std::is_trivially_copyable_v<MpiPacket>);

constexpr int kMpiPacketTag = 0;
constexpr int kMpiFirstStreamTag = 1;
// Messages of up to this many bytes are short. What every rank tells the others
// before a collective is.
constexpr std::size_t kMpiShortBytes = std::size_t{24} << 10;
constexpr std::size_t kMpiPacketBytes = sizeof(MpiPacket) + kMpiShortBytes;

}  // namespace lockstep
