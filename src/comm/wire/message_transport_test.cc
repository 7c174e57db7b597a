// Tests how messages wait for a connection: rank 0's transport is scripted, and
// rank 1 answers when the test lets it.
#include "src/comm/wire/message_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/scripted_transport.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Request = MessageTransport::Request;

constexpr int kLeft = ScriptedTransport::kLeft;

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
  static std::optional<TransportError> error_of(Request& request) {
    try {
      request.wait(kTimeout);
      return std::nullopt;
    } catch (const TransportError& error) {
      return error;
    }
  }

  std::byte byte_{};
  ScriptedTransport script_;
  std::unique_ptr<MessageTransport> transport_;
  std::unique_ptr<Mesh> answering_;

 private:
  std::mutex mutex_;
  std::vector<FileDescriptor> sockets_;
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
  EXPECT_EQ(error_of(sent)->status(), kTransportClosed);
  EXPECT_EQ(error_of(received)->status(), kTransportClosed);
  EXPECT_THROW(send(3), TransportError);
}

TEST_F(AMessageToARankThatIsNotConnected, EndsWhenTheTransportIsClosed) {
  Request request = send(1);
  std::optional<TransportError> error;
  std::thread waiting([&] { error = error_of(request); });
  transport_->close();
  waiting.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status(), kTransportClosed);
  EXPECT_THAT(posted(), ElementsAre(kLeft));
}

TEST_F(AMessageToARankThatIsNotConnected, FailsNamingARankThatHasLeft) {
  leave();
  Request request = send(1);
  const auto error = error_of(request);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->peer(), 1);
  EXPECT_THAT(error->what(), HasSubstr("Connection refused"));
  EXPECT_THAT(error_text<TransportError>([&] { send(2); }),
              HasSubstr("Connection refused"));
}

// Such as a lack of descriptors.
TEST_F(AMessageToARankThatIsNotConnected, DoesNotBlameThatRankForOwnTrouble) {
  script_.attached = kTransportFailed;
  answer();
  Request request = send(1);
  const auto error = error_of(request);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status(), kTransportFailed);
  EXPECT_EQ(error->peer(), -1);
  EXPECT_STREQ(error->what(), "scripted");
  EXPECT_THROW(send(2), TransportError);
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

}  // namespace
}  // namespace lockstep
