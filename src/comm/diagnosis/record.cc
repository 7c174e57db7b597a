#include "src/comm/diagnosis/record.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/base/text_file.h"

namespace lockstep {

int GroupRecord::rank_in_job(int r) const {
  const auto at = static_cast<std::size_t>(r);
  return at < members.size() ? members[at] : r;
}

const GroupRecord* RankRecord::find_group(std::int64_t id) const {
  const auto found = std::ranges::find(groups, id, &GroupRecord::id);
  return found == groups.end() ? nullptr : &*found;
}

std::string describe(const OperationRecord& operation) {
  return describe(operation.signature, operation.peer, operation.tag,
                  operation.label);
}

std::string short_name(const Signature& signature) {
  return fmt::format(
      "{}{} #{}", name_of(static_cast<OperationKind>(signature.kind)),
      static_cast<Division>(signature.division) == Division::kPerRank ? "_v"
                                                                      : "",
      signature.sequence);
}

std::string record_file_name(int rank) {
  return fmt::format("rank-{}.json", rank);
}

void write_record(const std::filesystem::path& folder,
                  const RankRecord& record) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw SystemError(
        fmt::format("cannot create the folder {} for records", folder.string()),
        error.value());
  replace_text_file(folder / record_file_name(record.rank),
                    encode_record(record));
}

}  // namespace lockstep
