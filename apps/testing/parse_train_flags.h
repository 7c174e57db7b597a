// Parses the flags of `lockstep train` in tests.
//
// Errors:  parse_train() those of parse_train_options().
#pragma once

#include <string>
#include <vector>

#include "apps/train/train_options.h"
#include "src/base/testing/error_text.h"

namespace lockstep {

inline TrainOptions parse_train(const std::vector<const char*>& arguments,
                                const RankPlace& place = {.cores = 2}) {
  return parse_train_options(arguments, place);
}

inline std::string train_error(const std::vector<const char*>& arguments,
                               const RankPlace& place = {.cores = 2}) {
  return error_text([&] { parse_train(arguments, place); });
}

}  // namespace lockstep
