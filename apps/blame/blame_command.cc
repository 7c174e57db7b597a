#include "apps/blame/blame_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "src/base/report_text.h"
#include "src/launch/record/record_folder.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

std::vector<int> ranks_of(const Evidence& evidence) {
  std::vector<int> ranks;
  for (const RankRecord& record : evidence.records)
    ranks.push_back(record.rank);
  return ranks;
}

}  // namespace

std::string to_text(const BlameVerdict& verdict, const Evidence& evidence) {
  std::string text = verdict.paragraph + "\n";
  for (const Call& call : verdict.calls)
    text +=
        fmt::format("  called:  {} by {}\n", call.call, name_ranks(call.ranks));
  if (!verdict.likely.empty()) text += "  likely:  " + verdict.likely + "\n";
  text += "  next:    " + verdict.next + "\n";
  const std::vector<int> silent = evidence.silent();
  text += fmt::format("  records: of {}{}\n", name_ranks(ranks_of(evidence)),
                      silent.empty() ? "" : "; none of " + name_ranks(silent));
  for (const std::string& file : evidence.unusable)
    text += "  unusable: " + file + "\n";
  return text;
}

std::string to_json(const BlameVerdict& verdict, const Evidence& evidence) {
  Json object;
  object["fault"] = name_of(verdict.fault);
  object["ranks"] = verdict.ranks;
  object["world_size"] = evidence.world_size();
  object["group"] = verdict.group;
  object["operation"] = verdict.operation;
  object["text"] = verdict.paragraph;
  object["likely"] = verdict.likely;
  object["next"] = verdict.next;
  object["calls"] = Json::array();
  for (const Call& call : verdict.calls)
    object["calls"].push_back({{"call", call.call}, {"ranks", call.ranks}});
  object["records"] = ranks_of(evidence);
  object["without_record"] = evidence.silent();
  object["unusable"] = evidence.unusable;
  return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

BlameReport blame(const BlameOptions& options) {
  const FileDescriptor lock = lock_records(options.folder);
  const Evidence evidence = read_evidence(options.folder);
  const BlameVerdict verdict = judge(evidence);
  return {.text = options.format == ReportFormat::kJson
                      ? to_json(verdict, evidence)
                      : to_text(verdict, evidence),
          .fault = verdict.fault};
}

}  // namespace lockstep
