#include "src/comm/operation/buffer_span.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {

std::size_t total_bytes(const BufferSpan& run) {
  std::size_t total = 0;
  for (const Buffer& buffer : run.buffers) total += buffer.bytes();
  return run.parts == 1 ? total : total / run.parts;
}

void copy(BufferCursor& from, BufferCursor& to, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t length = std::min({bytes, from.left(), to.left()});
    LOCKSTEP_CHECK(length > 0, "a run is too short for what is copied");
    if (from.here() != to.here())  // in place
      std::memcpy(to.here(), from.here(), length);
    from.advance(length);
    to.advance(length);
    bytes -= length;
  }
}

void copy_from(const BufferSpan& run, std::size_t at, std::span<std::byte> to) {
  if (to.empty()) return;
  if (run.buffers.size() == 1 && run.parts == 1) {  // the common case
    const Buffer& only = run.buffers.front();
    LOCKSTEP_CHECK(at + to.size() <= only.bytes(),
                   "a run is too short for what is copied");
    std::memcpy(to.data(), static_cast<const std::byte*>(only.data) + at,
                to.size());
    return;
  }
  BufferCursor from(run, at);
  const Buffer buffer = view_bytes(to);
  BufferCursor into(BufferSpan{Buffers(buffer)});
  copy(from, into, to.size());
}

void copy_into(const BufferSpan& run, std::size_t at,
               std::span<const std::byte> from) {
  const Buffer buffer = view_bytes(from);
  BufferCursor source(BufferSpan{Buffers(buffer)});
  BufferCursor into(run, at);
  copy(source, into, from.size());
}

}  // namespace lockstep
