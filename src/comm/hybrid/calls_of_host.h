// The calls of a host's ranks as bytes for the other hosts, where they differ.
//
// Many ranks make few different calls: the bytes hold each of these once, and a
// number per rank.
//
// Threads: any thread.
// Errors:  none.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "src/comm/operation/operation.h"

namespace lockstep {

// Appends `calls`, in at most `most_bytes`, to `message`. Where there is no
// room, as for ranks that all make a call of their own, some ranks appear with
// the first rank's call.
void append_calls(std::vector<std::byte>& message,
                  std::span<const AnnouncedCall> calls, std::size_t most_bytes);

// The calls of `ranks` ranks at the beginning of `message`.
std::vector<AnnouncedCall> read_calls(std::span<const std::byte> message,
                                      std::size_t ranks);

}  // namespace lockstep
