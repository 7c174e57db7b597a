// One rank's mail, over a transport on which messages come when the test says.
#include "lockstep/comm/wire/wire_mail.h"

#include <gtest/gtest.h>

#include <vector>

#include "lockstep/comm/testing/scripted_transport.h"

namespace lockstep {
namespace {

// What a send or a receive of rank 0's asks for. Lives as long as `data`.
struct Asked {
  Asked(OperationKind kind, std::vector<float>& data, int peer)
      : buffer(view(data)) {
    operation.kind = kind;
    (kind == OperationKind::kSend ? operation.inputs : operation.outputs) =
        std::span(&buffer, 1);
    operation.peer = peer;
    operation.sequence = 1;
    operation.timeout = std::chrono::minutes(5);
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  Buffer buffer;
  Operation operation;
};

TEST(WireMail, LeavesNoLetterOfItsOwnToTheTransport) {
  ScriptedTransport transport;
  const auto core = transport.make_core(3, open_store("memory:"));
  {
    WireMail mail(*core);
    std::vector<float> data(10);
    const Asked sent(OperationKind::kSend, data, 1);
    mail.post(std::make_shared<WireMessage>(sent.operation));
    EXPECT_GT(transport.held(kChannelLetter), 0);
  }
  // What the transport may still write to has been freed.
  EXPECT_EQ(transport.held(kChannelLetter), 0);
}

}  // namespace
}  // namespace lockstep
