#include "src/comm/rendezvous/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/rank_processes.h"
#include "src/store/host_address.h"
#include "src/store/tcp_store_server.h"
#include "src/store/testing/watched_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

using SharedStore = std::shared_ptr<Store>;

// Runs `rank_body` for each rank on its own thread.
void on_threads(int ranks, const std::function<void(int)>& rank_body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { rank_body(rank); });
  for (std::thread& thread : threads) thread.join();
}

template <class E>
std::string refusal(const SharedStore& store, const JobInfo& card,
                    Rendezvous::Seconds timeout = kTimeout) {
  return error_text<E>([&] { const Rendezvous seat(store, card, timeout); });
}

TEST(Seats, AreTakenTogetherAndShareAPartOfTheStore) {
  const SharedStore store = open_store("memory:");
  on_threads(4, [&](int rank) {
    const Rendezvous seat(store, {.rank = rank, .world_size = 4}, kTimeout);
    seat.store()->set("from/" + std::to_string(rank), {}, kTimeout);
    for (int other = 0; other < 4; ++other)
      seat.store()->get("from/" + std::to_string(other), kTimeout);
  });
}

// Issue 19, point 20: the store sets this key when rank 2's connection ends.
TEST(Seats, AreGivenUpWhenARankEndsWhileOthersAreWaitedFor) {
  const SharedStore store = open_store("memory:");
  store->set("gathering/1/ended/2", to_bytes("ended"), kTimeout);
  on_threads(2, [&](int rank) {
    EXPECT_THAT(
        refusal<PeerFailure>(store, {.rank = rank, .world_size = 4}),
        HasSubstr("the store lost its connection to rank 2: that process has"));
  });
}

// Issue 19, point 20: the rank's process ends before rank 0 comes.
TEST(Seats, AreGivenUpOfARankThatEndsWhileItWaitsForRankZero) {
  const TcpStoreServer server("127.0.0.1", 0, "");
  EXPECT_THROW(Rendezvous(std::make_shared<WatchedStore>(
                              open_store(server.url()),
                              [](std::string_view method) {
                                if (method == "wait_any")
                                  throw NetworkError("killed");
                              }),
                          {.rank = 1, .world_size = 3}, kTimeout),
               NetworkError);
  on_threads(2, [&](int number) {
    EXPECT_THAT(
        refusal<PeerFailure>(open_store(server.url()),
                             {.rank = 2 * number, .world_size = 3}),
        HasSubstr("the store lost its connection to rank 1: that process has"));
  });
}

TEST(Seats, OfALaterGatheringSeeNothingOfTheEarlier) {
  const SharedStore store = open_store("memory:");
  on_threads(3, [&](int rank) {
    for (int gathering = 0; gathering < 5; ++gathering) {
      const Rendezvous seat(store, {.rank = rank, .world_size = 3}, kTimeout);
      // Every rank adds once, to a counter of this gathering.
      if (seat.store()->add("count", 1, kTimeout) == 3)
        seat.store()->set("full", {}, kTimeout);
      seat.store()->get("full", kTimeout);
      EXPECT_EQ(seat.store()->add("count", 0, kTimeout), 3);
    }
  });
}

TEST(Seats, ThatStayEmptyAreNamedAndCanBeTakenNextTime) {
  const SharedStore store = open_store("memory:");
  const auto timeout = [](int rank) {
    return Rendezvous::Seconds(rank == 0 ? 0.3s : kTimeout);
  };
  on_threads(2, [&](int rank) {
    EXPECT_THAT(
        refusal<Timeout>(store, {.rank = rank, .world_size = 4}, timeout(rank)),
        HasSubstr("missing: ranks 2, 3"));
  });
  for (const int late : {2, 3})
    EXPECT_THAT(refusal<Timeout>(store, {.rank = late, .world_size = 4}),
                HasSubstr("came after the others had given up"));
  on_threads(4, [&](int rank) {
    const Rendezvous seat(store, {.rank = rank, .world_size = 4}, kTimeout);
  });
}

TEST(Seats, WaitForRankZeroOnlySoLong) {
  const SharedStore store = open_store("memory:");
  EXPECT_THAT(refusal<Timeout>(store, {.rank = 1, .world_size = 2}, 10ms),
              HasSubstr("timed out on rank 1 of 2\n  missing: rank 0\n"));
  // Rank 0 learns that rank 1 was there, and both meet the next time.
  EXPECT_THAT(refusal<Timeout>(store, {.rank = 0, .world_size = 2}),
              HasSubstr("missing: rank 1"));
  on_threads(2, [&](int rank) {
    const Rendezvous seat(store, {.rank = rank, .world_size = 2}, kTimeout);
  });
}

TEST(Seats, AreRefusedToAllWhereWorldSizesDiffer) {
  const SharedStore store = open_store("memory:");
  const std::vector<int> sizes{3, 4, 3};
  on_threads(3, [&](int rank) {
    const std::string error = refusal<InvalidArgument>(
        store,
        {.rank = rank, .world_size = sizes[static_cast<std::size_t>(rank)]});
    EXPECT_THAT(error, HasSubstr("rank 1, expects a job of 4 ranks"));
    EXPECT_THAT(error, HasSubstr("but rank 0 one of 3 ranks"));
    EXPECT_THAT(error, HasSubstr("two jobs use one port"));
  });
}

TEST(Seats, AreRefusedToAllWhereSettingsDiffer) {
  const SharedStore store = open_store("memory:");
  const auto settings = [](int rank) -> std::vector<JobField> {
    return {{"LOCKSTEP_BACKEND", rank < 2 ? "hybrid" : "gloo"},
            {"LOCKSTEP_WIRE", "gloo"},
            {"LOCKSTEP_CHECK", rank == 1 ? "off" : "all"}};
  };
  const std::string host = own_host_name();
  on_threads(4, [&](int rank) {
    const std::string error = refusal<InvalidArgument>(
        store, {.rank = rank, .world_size = 4, .settings = settings(rank)});
    EXPECT_THAT(error,
                HasSubstr("LOCKSTEP_BACKEND is hybrid on ranks 0, 1 (" + host +
                          ") and gloo on ranks 2, 3 (" + host + ")"));
    EXPECT_THAT(error, HasSubstr("LOCKSTEP_CHECK is all on ranks 0, 2, 3 (" +
                                 host + ") and off on rank 1 (" + host + ")"));
    EXPECT_THAT(error, Not(HasSubstr("LOCKSTEP_WIRE")));
  });
}

TEST(Seats, AreRefusedToStrangersWithoutHarmToTheJob) {
  const std::vector<JobInfo> strangers{
      {.rank = 2, .world_size = 2, .job = "slurm 8.0"},
      {.rank = 2, .world_size = 2, .job = "slurm 7.0", .has_token = true},
      {.rank = 2, .world_size = 3, .job = "slurm 8.0"}};
  for (const JobInfo& stranger : strangers) {
    const SharedStore store = open_store("memory:");
    on_threads(3, [&](int rank) {
      if (rank == 2) {
        EXPECT_THAT(refusal<InvalidArgument>(store, stranger),
                    HasSubstr("2 ranks (\"slurm 7.0\"), without a LOCKSTEP_"));
        return;
      }
      const Rendezvous seat(
          store, {.rank = rank, .world_size = 2, .job = "slurm 7.0"}, kTimeout);
    });
  }
}

TEST(Seats, InAStoreOfSomethingElseAreRefused) {
  const SharedStore store = open_store("memory:");
  for (const char* card : {"", "2", "+", "-2", "two\n", "+99999999999\n"}) {
    store->set("gathering/1/card", to_bytes(card), kTimeout);
    store->erase("gathering/1/seat/1", kTimeout);
    EXPECT_THAT(refusal<InvalidArgument>(store, {.rank = 1, .world_size = 2}),
                HasSubstr("does not hold a job of Lockstep"))
        << card;
  }
}

// A port that the kernel gives to no other program while this lives: it stays
// bound, without listening, which does not block a program that sets
// SO_REUSEADDR.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address_;
    auto* address = reinterpret_cast<sockaddr*>(&address_);
    if (::bind(socket_.get(), address, size) != 0 ||
        ::getsockname(socket_.get(), address, &size) != 0)
      throw SystemError("could not reserve a port", errno);
  }
  int number() const { return ntohs(address_.sin_port); }

 private:
  FileDescriptor socket_;
  sockaddr_in address_{};
};

// The following tests run two jobs with the same store, as processes.
class TwoJobs : public testing::Test {
 protected:
  std::vector<std::string> command(const std::string& name = "barrier") const {
    return {LOCKSTEP_COMM_RANKS, name};
  }
  std::vector<std::string> at(const TcpStoreServer& server,
                              std::vector<std::string> more) const {
    more.push_back("LOCKSTEP_STORE=" + server.url());
    return more;
  }
};

TEST_F(TwoJobs, OnOnePortFailAtOnceWhereTheirWorldSizesDiffer) {
  TcpStoreServer server("127.0.0.1", 0, "");
  RankProcesses one(1, command(),
                    at(server, {"RANK=0", "WORLD_SIZE=2", "LOCKSTEP_TOKEN="}));
  RankProcesses other(
      1, command(), at(server, {"RANK=1", "WORLD_SIZE=3", "LOCKSTEP_TOKEN="}));
  for (RankProcesses* job : {&one, &other}) {
    EXPECT_EQ(job->wait_for_end(0, kTimeout), 10);
    EXPECT_THAT(job->output(0), HasSubstr("expects a job of 3 ranks"));
  }
}

TEST_F(TwoJobs, OnOnePortFailAtOnceWhereARankIsTaken) {
  TcpStoreServer server("127.0.0.1", 0, "secret");
  const auto variables = at(server, {"LOCKSTEP_TOKEN=secret"});
  RankProcesses one(2, command("held_before_all_reduce"), variables);
  one.wait_for_line(1, "holding", kTimeout);
  RankProcesses other(2, command(), variables);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(other.wait_for_end(rank, kTimeout), 10);
    EXPECT_THAT(other.output(rank),
                HasSubstr("process " + std::to_string(one.pid(rank)) + " on "));
    EXPECT_THAT(
        other.output(rank),
        HasSubstr("is rank " + std::to_string(rank) + " of this job already"));
  }
}

TEST_F(TwoJobs, OnOnePortFailAtOnceWhereTheirTokensDiffer) {
  TcpStoreServer server("127.0.0.1", 0, "secret");
  for (const char* token : {"LOCKSTEP_TOKEN=", "LOCKSTEP_TOKEN=another"}) {
    RankProcesses other(1, command(),
                        at(server, {"RANK=1", "WORLD_SIZE=2", token}));
    EXPECT_EQ(other.wait_for_end(0, kTimeout), 10);
    EXPECT_THAT(other.output(0), HasSubstr("token"));
  }
}

// Every rank gets the reason, though the store ends with rank 0.
TEST(AJob, FailsAtOnceWhereASettingDiffersBetweenItsRanks) {
  for (const std::string setting :
       {"LOCKSTEP_BACKEND=gloo", "LOCKSTEP_WIRE=mpi", "LOCKSTEP_CHECK=off"}) {
    const ReservedPort port;
    RankProcesses job(
        3,
        {"/bin/sh", "-c",
         "[ $RANK != 1 ] || export " + setting + "; exec \"$0\" barrier",
         LOCKSTEP_COMM_RANKS},
        {"INIT_METHOD=tcp://127.0.0.1:" + std::to_string(port.number())});
    for (const int rank : {0, 1, 2}) {
      EXPECT_EQ(job.wait_for_end(rank, kTimeout), 10);
      EXPECT_THAT(job.output(rank),
                  HasSubstr("different settings: " +
                            setting.substr(0, setting.find('='))));
      EXPECT_THAT(
          job.output(rank),
          HasSubstr(setting.substr(setting.find('=') + 1) + " on rank 1 ("));
    }
  }
}

TEST_F(TwoJobs, OneAfterTheOtherMayBeServedByTheirRankZero) {
  const ReservedPort port;
  const std::string method =
      "INIT_METHOD=tcp://127.0.0.1:" + std::to_string(port.number());
  for (int turn = 0; turn < 5; ++turn) {
    RankProcesses job(3, command("join_twice"), {method});
    for (const int rank : {0, 1, 2})
      EXPECT_EQ(job.wait_for_end(rank, kTimeout), 0) << job.output(rank);
  }
}

TEST_F(TwoJobs, OneAfterTheOtherMayUseOneStore) {
  TcpStoreServer server("127.0.0.1", 0, "");
  const auto variables = at(server, {"LOCKSTEP_TOKEN="});
  for (int turn = 0; turn < 2; ++turn) {
    RankProcesses job(2, command("join_twice"), variables);
    for (const int rank : {0, 1}) {
      EXPECT_EQ(job.wait_for_end(rank, kTimeout), 0) << job.output(rank);
      EXPECT_THAT(job.output(rank), HasSubstr("joined twice"));
    }
  }
}

}  // namespace
}  // namespace lockstep
