// Tests one rank's messages, over a transport that delivers them when the test
// says.
#include "src/comm/wire/wire_message_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/operation/peer_checks.h"
#include "src/comm/testing/scripted_transport.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

// A send or receive of rank 0. Valid while `data` lives.
struct Asked {
  Asked(OperationKind kind, std::vector<float>& data, int peer)
      : buffer(view(data)) {
    operation.kind = kind;
    (kind == OperationKind::kSend ? operation.inputs : operation.outputs) =
        std::span(&buffer, 1);
    operation.peer = peer;
    operation.sequence = 1;
    operation.timeout = 5min;
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  Buffer buffer;
  Operation operation;
};

TEST(WireMessageMatcher, LeavesNoEnvelopeOfItsOwnToTheTransport) {
  ScriptedTransport transport;
  const auto core = transport.make_core(3, open_store("memory:"));
  {
    WireMessageMatcher matcher(*core, nullptr);
    std::vector<float> data(10);
    const Asked sent(OperationKind::kSend, data, 1);
    matcher.post(std::make_shared<WireMessage>(sent.operation));
    EXPECT_GT(transport.held(kChannelEnvelope), 0);
  }
  // No freed memory may still be written by the transport.
  EXPECT_EQ(transport.held(kChannelEnvelope), 0);
}

// The envelope of a message from rank 1, with too many elements for the
// envelope itself.
std::vector<std::byte> envelope_of_long_message(std::vector<float>& data) {
  const Asked sent(OperationKind::kSend, data, 0);
  const Signature signature = signature_of(sent.operation);
  std::vector<std::byte> envelope(sizeof signature + 2 * sizeof(std::int32_t));
  std::memcpy(envelope.data(), &signature, sizeof signature);
  return envelope;
}

// A receive whose elements are in flight when the group ends; the test keeps
// its Work, which is the message.
class AnInterruptedReceive : public testing::Test {
 protected:
  AnInterruptedReceive() {
    matcher_.post(message_);
    transport_.deliver(1, kChannelEnvelope, envelope_of_long_message(data_));
    EXPECT_FALSE(matcher_.done(message_));
    EXPECT_EQ(transport_.held(kChannelPayload), 1);
  }
  void end_group() {
    core_->transport().close();
    matcher_.stop(std::make_exception_ptr(Error("the group ended")));
  }

  ScriptedTransport transport_;
  std::unique_ptr<WireCore> core_ =
      transport_.make_core(2, open_store("memory:"));
  WireMessageMatcher matcher_{*core_, nullptr};
  std::vector<float> data_ = std::vector<float>(100'000);
  Asked wanted_{OperationKind::kReceive, data_, 1};
  WireMessageMatcher::Pointer message_ =
      std::make_shared<WireMessage>(wanted_.operation);
};

TEST_F(AnInterruptedReceive, LeavesNoBufferToTheTransport) {
  end_group();
  EXPECT_EQ(transport_.held(kChannelPayload), 0);
}

TEST_F(AnInterruptedReceive, LeavesNoBufferThoughAThreadWaitsForIt) {
  std::thread waiter(
      [&] { EXPECT_THROW(matcher_.wait(message_, 1min), Error); });
  end_group();
  EXPECT_EQ(transport_.held(kChannelPayload), 0);
  waiter.join();
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Timeout& timeout) {
    return timeout.what();
  } catch (const std::exception& other) {
    return std::string("no Timeout: ") + other.what();
  }
}

// Rank `rank` says why it is gone, which a rank that gives up does too.
void leave(ScriptedTransport& transport, int rank,
           const std::string& why = kLeftGroup) {
  transport.deliver(rank, kChannelControl,
                    encode(Fault{FaultKind::kPeerGone, rank, 0, why}));
  transport.lose(rank);
}

// Issue 43: it noticed a death only at its deadline, unless all others died.
TEST(AReceiveFromAnySource, EndsWhenARankDiesButNotWhenOneLeaves) {
  ScriptedTransport transport;
  const auto core = transport.make_core(4, open_store("memory:"));
  WireMessageMatcher matcher(*core, nullptr);
  std::vector<float> data(10);
  const Asked wanted(OperationKind::kReceive, data, kAnySource);
  const auto message = std::make_shared<WireMessage>(wanted.operation);
  matcher.post(message);
  leave(transport, 2);
  EXPECT_FALSE(matcher.done(message));
  // It sees the end of the envelopes before that of the notices.
  transport.lose(1, kChannelEnvelope);
  EXPECT_FALSE(matcher.done(message));
  transport.lose(1);
  EXPECT_TRUE(matcher.done(message));
  try {
    matcher.wait(message, 1min);
    FAIL() << "it goes on";
  } catch (const TransportError& error) {
    EXPECT_EQ(error.peer(), 1);
  }
}

TEST(WireMessageMatcher, TellsTheNoticeOfARankThatIsGivenUpFromAGoodbye) {
  ScriptedTransport transport;
  const auto core = transport.make_core(3, open_store("memory:"));
  leave(transport, 2);
  EXPECT_FALSE(core->look_for_fault());
  leave(transport, 1, "it left the group (seen by rank 2 on node-b)");
  const auto fault = core->look_for_fault();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->culprit, 1);
}

TEST(AReceiveFromAnySource, NamesEveryoneElseWhenItTimesOutAndTheLostFirst) {
  ScriptedTransport transport;
  const auto core = transport.make_core(4, open_store("memory:"));
  WireMessageMatcher matcher(*core, nullptr);
  std::vector<float> data(10);
  const Asked wanted(OperationKind::kReceive, data, kAnySource);
  const auto message = std::make_shared<WireMessage>(wanted.operation);
  matcher.post(message);
  leave(transport, 2);
  EXPECT_FALSE(matcher.done(message));
  core->held_up_by({3});  // by the last collective
  EXPECT_THAT(
      text_of(core->give_up({std::make_exception_ptr(WaitExpired()),
                             message->operation, message->begun})),
      AllOf(HasSubstr("missing: rank 2, which has died or left, not seen in "
                      "any operation yet\n  missing: rank 1, not seen in"),
            HasSubstr("missing: rank 3, not seen in")));
}

std::string death_key(int rank) { return "ended/" + std::to_string(rank); }

// Rank 0 of three, which waits for a message from either other rank.
struct AReceiveFromEitherOfTwo : testing::Test {
  void tell_end_of(int rank) {
    store->set(death_key(rank), to_bytes("ended"), 1min);
  }

  ScriptedTransport transport;
  const std::shared_ptr<Store> store = open_store("memory:");
  const std::unique_ptr<WireCore> core =
      transport.make_core(3, store, {death_key(0), death_key(1), death_key(2)});
  WireMessageMatcher matcher{*core, nullptr};
  std::vector<float> data = std::vector<float>(10);
  const Asked wanted{OperationKind::kReceive, data, kAnySource};
  const std::shared_ptr<WireMessage> message =
      std::make_shared<WireMessage>(wanted.operation);
};

TEST_F(AReceiveFromEitherOfTwo, EndsWhenTheStoreKnowsThatBothDied) {
  matcher.post(message);
  tell_end_of(1);
  tell_end_of(2);
  EXPECT_THROW(matcher.wait(message, 1min), TransportError);
}

TEST_F(AReceiveFromEitherOfTwo, GoesOnWhenTheStoreKnowsThatOneDied) {
  matcher.post(message);
  tell_end_of(2);
  EXPECT_THROW(matcher.wait(message, 300ms), WaitExpired);
  EXPECT_EQ(core->missing_in(message->operation), (std::vector<int>{2, 1}));
}

}  // namespace
}  // namespace lockstep
