#include "src/comm/nccl/control_calls.h"

#include <exception>

namespace lockstep {

Work start_control_message(Backend& control, const ControlMessage& message,
                           const Buffer& buffer) {
  Operation operation{
      .kind = message.sends ? OperationKind::kSend : OperationKind::kReceive,
      .peer = message.peer,
      .tag = message.tag,
      .timeout = kNoDeadline,
      .label = message.label};
  (message.sends ? operation.inputs : operation.outputs) =
      std::span(&buffer, 1);
  return control.start(operation);
}

void settle(const Work& work) noexcept try {
  work.wait();
} catch (const std::exception&) {
  // Only the end of the work matters, not its error.
}

}  // namespace lockstep
