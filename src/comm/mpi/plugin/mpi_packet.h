// The packets that the plug-in's processes exchange: a header and, if the
// packet carries a message, the message's bytes.
//
// All packets between two processes have one MPI tag, so they arrive in order.
// The sender offers a long message in a packet; once the receiver has a place
// for it, it accepts with a packet that names a tag, and the message is
// streamed with that tag.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace lockstep {

// Identifies a group on every process: a hash of its name and members, and the
// number of earlier groups with the same hash.
struct MpiGroupId {
  std::uint64_t members = 0;
  std::uint64_t turn = 0;
  auto operator<=>(const MpiGroupId&) const = default;
};

enum class MpiPacketKind : std::int32_t {
  kMessage = 0,  // a whole short message
  kOffer = 1,    // a long message is ready
  kAccept = 2,   // the long message may be sent, with the stream tag
  kLeft = 3,     // the sender leaves the group in good order
  kClosed = 4,   // the sender has aborted the group
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
  // The sender's number for the offer, repeated in the answer.
  std::uint64_t offer = 0;
  std::int32_t stream_tag = 0;
  std::int32_t reserved = 0;
};
static_assert(std::is_trivially_copyable_v<MpiPacket>);

constexpr int kMpiPacketTag = 0;
constexpr int kMpiFirstStreamTag = 1;
// Messages of up to this many bytes are short. The call that every rank
// announces before a collective is short.
constexpr std::size_t kMpiShortBytes = std::size_t{24} << 10;
constexpr std::size_t kMpiPacketBytes = sizeof(MpiPacket) + kMpiShortBytes;

}  // namespace lockstep
