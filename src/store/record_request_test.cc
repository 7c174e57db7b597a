#include "src/store/record_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

TEST(RecordRequest, CountsTheRecordsOfRanksAfterOneThatDoesNotAnswer) {
  const auto store = open_store("memory:");
  const std::int64_t number = next_request(*store, 1s);
  for (const int rank : {0, 1, 2}) {
    store->set(listening_key(rank), to_bytes("yes"), 1s);
    if (rank != 1)
      store->set(written_key(number, rank), to_bytes("written"), 1s);
  }
  EXPECT_THAT(request_records(*store, std::vector{0, 1, 2, 3}, 10ms),
              ElementsAre(0, 2));
}

}  // namespace
}  // namespace lockstep
