#include "src/store/elastic_round.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(ElasticRound, ReadsWhatItWrites) {
  const ElasticRound round{.number = 7, .members = {3, 0, 12}};
  EXPECT_EQ(encode(round), "3 0 12");
  EXPECT_EQ(decode_elastic_round(7, encode(round)), round);
}

TEST(ElasticRound, RefusesAnotherText) {
  for (const char* text : {"x", "1,2", "1 x", "99999999999"})
    EXPECT_THROW(decode_elastic_round(1, text), InvalidArgument) << text;
}

}  // namespace
}  // namespace lockstep
