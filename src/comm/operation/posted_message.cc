#include "src/comm/operation/posted_message.h"

namespace lockstep {

PostedMessage::PostedMessage(const Operation& given)
    : label(given.label), operation(given), deadline(given.timeout) {
  const bool sends = given.kind == OperationKind::kSend;
  buffer = sends ? given.inputs.front() : given.outputs.front();
  (sends ? operation.inputs : operation.outputs) = std::span(&buffer, 1);
  operation.label = label;
}

}  // namespace lockstep
