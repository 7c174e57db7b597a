// Tests how messages wait for a connection: rank 0's transport is scripted, and
// rank 1 answers when the test lets it.
#include "src/comm/wire/message_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/scripted_transport.h"
#include "src/comm/wire/abort_notice.h"
#include "src/comm/wire/wire_message_matcher.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Request = MessageTransport::Request;

constexpr int kLeft = ScriptedTransport::kLeft;
constexpr int kNoticeTag = 1;

// Ranks 0 and 1 have formed a group without a connection.
class AMessageToARankThatIsNotConnected : public testing::Test {
 protected:
  void SetUp() override {
    const auto store = open_store("memory:");
    const auto form = [&](int rank) {
      return std::make_unique<Mesh>(
          GroupIdentity{.name = "late", .rank = rank, .size = 2}, *store,
          "127.0.0.1", std::vector<int>{}, Deadline(kTimeout));
    };
    std::thread other([&] { answering_ = form(1); });
    transport_ = script_.make_transport(2, form(0));
    other.join();
  }

  // From now on rank 1 answers calls. Before, it is as if it were stopped.
  void answer() {
    answering_->serve(
        {.connected =
             [this](int, FileDescriptor socket) {
               const std::lock_guard lock(mutex_);
               sockets_.push_back(std::move(socket));
             },
         .unreachable = [](int, Mesh::Cause, const std::string&) {}});
  }
  // Rank 1 has left.
  void leave() { answering_->stop(); }

  Request send(int tag) {
    return transport_->send({.peer = 1,
                             .channel = kChannelPayload,
                             .tag = tag,
                             .data = &byte_,
                             .bytes = 1});
  }
  Request receive(int tag) {
    return transport_->receive({.peer = 1,
                                .channel = kChannelPayload,
                                .tag = tag,
                                .data = &byte_,
                                .bytes = 1});
  }
  std::vector<int> posted() const { return script_.posted_tags(); }
  // Waits until rank 1 is connected and what was queued is posted.
  void expect_posted(const std::vector<int>& tags) {
    const Deadline deadline(kTimeout);
    while (posted().size() < tags.size() && !deadline.expired())
      std::this_thread::yield();
    EXPECT_EQ(posted(), tags);
  }
  static TransportError error_of(Request& request) {
    try {
      request.wait(kTimeout);
    } catch (const TransportError& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return {kTransportDone, -1, ""};
  }

  std::byte byte_{};
  ScriptedTransport script_;
  std::shared_ptr<MessageTransport> transport_;

 private:
  std::mutex mutex_;
  std::vector<FileDescriptor> sockets_;
  std::unique_ptr<Mesh> answering_;  // last: its thread uses the above
};

TEST_F(AMessageToARankThatIsNotConnected, IsPostedInOrderOnceItIs) {
  const std::array requests{send(1), receive(2), send(3)};
  EXPECT_FALSE(Request(receive(4)).done());  // dropped at once
  EXPECT_THAT(posted(), IsEmpty());
  answer();
  expect_posted({1, 2, 3});
  const Request later = send(5);
  EXPECT_THAT(posted(), ElementsAre(1, 2, 3, 5));
}

TEST_F(AMessageToARankThatIsNotConnected, IsDoneWhenItsMessageHasCome) {
  Request request = receive(1);
  EXPECT_FALSE(request.wait(1ms));
  answer();
  const std::array message{std::byte{7}};
  script_.deliver(1, kChannelPayload, message);
  EXPECT_TRUE(request.wait(kTimeout));
  EXPECT_EQ(byte_, std::byte{7});
}

TEST_F(AMessageToARankThatIsNotConnected, IsDroppedWhenThisRankLeaves) {
  Request sent = send(1);
  Request received = receive(2);
  transport_->leave();
  EXPECT_THAT(posted(), ElementsAre(kLeft));
  EXPECT_EQ(error_of(sent).status(), kTransportClosed);
  EXPECT_EQ(error_of(received).status(), kTransportClosed);
  EXPECT_THROW(send(3), TransportError);
}

TEST_F(AMessageToARankThatIsNotConnected, EndsWhenTheTransportIsClosed) {
  Request request = send(1);
  std::thread waiting(
      [&] { EXPECT_EQ(error_of(request).status(), kTransportClosed); });
  transport_->close();
  waiting.join();
  EXPECT_THAT(posted(), ElementsAre(kLeft));
}

TEST_F(AMessageToARankThatIsNotConnected, FailsNamingARankThatHasLeft) {
  leave();
  Request request = send(1);
  const TransportError error = error_of(request);
  EXPECT_EQ(error.peer(), 1);
  EXPECT_THAT(error.what(), HasSubstr("Connection refused"));
  EXPECT_THAT(error_text<TransportError>([&] { send(2); }),
              HasSubstr("Connection refused"));
}

// Such as a lack of descriptors.
TEST_F(AMessageToARankThatIsNotConnected, DoesNotBlameThatRankForOwnTrouble) {
  script_.attached = kTransportFailed;
  answer();
  Request request = send(1);
  const TransportError error = error_of(request);
  EXPECT_EQ(error.status(), kTransportFailed);
  EXPECT_EQ(error.peer(), -1);
  EXPECT_THAT(error.what(), HasSubstr("connect to rank 1: scripted"));
  EXPECT_THROW(send(2), TransportError);
}

TEST_F(AMessageToARankThatIsNotConnected, FailsEveryReceiveForOwnTrouble) {
  script_.attached = kTransportFailed;
  WireCore::Parts parts{.identity = {.name = "late", .size = 2}};
  parts.transport = transport_;
  parts.fault = std::make_unique<GroupFault>(open_store("memory:"), "fault");
  WireCore core(std::move(parts));
  WireMessageMatcher matcher(core, nullptr);
  std::vector<int> data(3);
  const Buffer buffer = view(data);
  const auto status_of = [&](int source) {
    const auto message = std::make_shared<WireMessage>(
        Operation{.kind = OperationKind::kReceive,
                  .outputs = std::span(&buffer, 1),
                  .peer = source,
                  .timeout = kTimeout});
    matcher.post(message);
    try {
      matcher.wait(message, kTimeout);
    } catch (const TransportError& error) {
      return error.status();
    }
    return kTransportDone;
  };
  answer();
  EXPECT_EQ(status_of(1), kTransportFailed);
  EXPECT_EQ(status_of(kAnySource), kTransportFailed);
}

TEST_F(AMessageToARankThatIsNotConnected, IsWatchedUntilItIs) {
  std::mutex mutex;
  std::set<int> seen;
  const auto see = [&](int peer) {
    const std::lock_guard lock(mutex);
    seen.insert(peer);
  };
  {
    const MessageTransport::ConnectionWatch watch(*transport_, see);
    transport_->connect(1);
    EXPECT_THAT(seen, IsEmpty());
    answer();
    const auto sees = [&] {
      const std::lock_guard lock(mutex);
      return seen.contains(1);
    };
    const Deadline deadline(kTimeout);
    while (!sees() && !deadline.expired()) std::this_thread::yield();
    EXPECT_THAT(seen, ElementsAre(1));
  }
  seen.clear();
  const MessageTransport::ConnectionWatch late(*transport_, see);
  EXPECT_THAT(seen, ElementsAre(1));
}

TEST_F(AMessageToARankThatIsNotConnected, ComesToOneThatWasNotMetEarly) {
  AbortNotice notice(*transport_);
  transport_->connect(1);
  answer();
  expect_posted({kNoticeTag});
  EXPECT_FALSE(notice.met_early(1));
  EXPECT_EQ(notice.first_lost(), std::nullopt);
  script_.lose(1);
  EXPECT_EQ(notice.first_lost(), 1);
  transport_->close();
}

// Rank 1 may not listen yet: without the goodbye it would hold this rank for
// dead.
TEST_F(AMessageToARankThatIsNotConnected, TakesTheGoodbyeBeforeThisRankLeaves) {
  script_.takes_notices = false;
  transport_->connect(1);
  answer();
  WireCore::Parts parts{.identity = {.name = "late", .size = 2}};
  parts.transport = transport_;
  parts.fault = std::make_unique<GroupFault>(open_store("memory:"), "fault");
  WireCore core(std::move(parts));
  expect_posted({kNoticeTag});
  core.leave();
  EXPECT_THAT(posted(), ElementsAre(kNoticeTag, kNoticeTag,
                                    ScriptedTransport::kTaken, kLeft));
}

// A rank that missed it would blame this one for the end of their connection.
TEST_F(AMessageToARankThatIsNotConnected, HasTheNoticeOfAnAbortBeforeIt) {
  AbortNotice notice(*transport_);
  notice.say({FaultKind::kAborted, 0, 0, "as a test"}, kTimeout);
  EXPECT_EQ(notice.say({FaultKind::kPeerGone, 1, 0, ""}, kTimeout).reason,
            "as a test");
  transport_->connect(1);
  answer();
  expect_posted({kNoticeTag, kNoticeTag});  // the receive, and the notice
  transport_->close();
}

}  // namespace
}  // namespace lockstep
