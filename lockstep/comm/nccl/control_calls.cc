#include "lockstep/comm/nccl/control_calls.h"

#include <exception>

namespace lockstep {

Work start_letter(Backend& control, const Letter& letter,
                  const Buffer& buffer) {
  Operation operation{
      .kind = letter.sends ? OperationKind::kSend : OperationKind::kReceive,
      .peer = letter.peer,
      .tag = letter.tag,
      .timeout = kNoDeadline,
      .place = letter.place};
  (letter.sends ? operation.inputs : operation.outputs) = std::span(&buffer, 1);
  return control.start(operation);
}

void settle(const Work& work) noexcept try {
  work.wait();
} catch (const std::exception&) {
  // Only the end of the work matters, not its error.
}

}  // namespace lockstep
