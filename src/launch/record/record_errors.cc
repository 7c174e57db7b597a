#include "src/launch/record/record_errors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "src/base/text_file.h"
#include "src/launch/record/record_folder.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostBytes = std::size_t{64} << 20U;

// Empty where the file is none or has none.
Json failures_in(const std::filesystem::path& file) try {
  const Json record = Json::parse(read_text_file(file, kMostBytes));
  return record.is_object() ? record.value("failures", Json::array())
                            : Json::array();
} catch (const Error&) {
  return Json::array();
} catch (const Json::exception&) {
  return Json::array();
}

bool is_loss_of(int rank, const Json& failure) try {
  constexpr int kNone = -1;
  return failure.value("type", "") == "PeerFailure" &&
         failure.value("culprit", kNone) == rank;
} catch (const Json::exception&) {
  return false;
}

}  // namespace

bool have_errors_beside_loss_of(int rank, const std::filesystem::path& folder) {
  return std::ranges::any_of(
      records_in(folder), [&](const std::filesystem::path& file) {
        const Json failures = failures_in(file);
        return std::ranges::any_of(failures, [&](const Json& failure) {
          return !is_loss_of(rank, failure);
        });
      });
}

}  // namespace lockstep
