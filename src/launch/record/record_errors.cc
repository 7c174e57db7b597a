#include "src/launch/record/record_errors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "src/base/text_file.h"
#include "src/launch/record/record_folder.h"

namespace lockstep {
namespace {

using AnyJson = nlohmann::json;

constexpr std::size_t kMostErrorBytes = std::size_t{64} << 20U;

// Empty where the file is none or has none.
AnyJson failures_in(const std::filesystem::path& file) try {
  const AnyJson record = AnyJson::parse(read_text_file(file, kMostErrorBytes));
  return record.is_object() ? record.value("failures", AnyJson::array())
                            : AnyJson::array();
} catch (const Error&) {
  return AnyJson::array();
} catch (const AnyJson::exception&) {
  return AnyJson::array();
}

bool is_loss_of(int rank, const AnyJson& failure) try {
  constexpr int kNone = -1;
  return failure.value("type", "") == "PeerFailure" &&
         failure.value("culprit", kNone) == rank;
} catch (const AnyJson::exception&) {
  return false;
}

}  // namespace

bool have_errors_beside_loss_of(int rank, const std::filesystem::path& folder) {
  return std::ranges::any_of(
      records_in(folder), [&](const std::filesystem::path& file) {
        const AnyJson failures = failures_in(file);
        return std::ranges::any_of(failures, [&](const AnyJson& failure) {
          return !is_loss_of(rank, failure);
        });
      });
}

}  // namespace lockstep
