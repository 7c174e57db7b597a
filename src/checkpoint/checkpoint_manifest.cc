#include "src/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <span>

#include "src/checkpoint/checkpoint_checksum.h"
#include "src/checkpoint/safetensors.h"

namespace lockstep {
namespace {

using ManifestJson = nlohmann::json;

constexpr int kManifestVersion = 1;
constexpr const char* kPartsKey = "lockstep.parts";
constexpr const char* kStepKey = "lockstep.step";
constexpr const char* kRankKey = "lockstep.rank";

std::string checksum_of(const CheckpointManifest& manifest) {
  CheckpointChecksum checksum;
  checksum.add(std::int64_t{manifest.version});
  checksum.add(manifest.step);
  checksum.add_texts(manifest.texts);
  for (const ShardFile& shard : manifest.shards) {
    checksum.add(std::string_view(shard.file));
    checksum.add(static_cast<std::int64_t>(shard.bytes));
    checksum.add(std::string_view(shard.checksum));
  }
  return checksum.hex();
}

// Whether it is a whole manifest except for the version: one flipped bit turns
// 1 into 3, 5 or 9.
bool is_whole_but_for_version(CheckpointManifest manifest) {
  manifest.version = kManifestVersion;
  return checksum_of(manifest) == manifest.checksum;
}

// A later version may have other fields.
int manifest_version(const ManifestJson& json, const std::string& file) {
  const auto found = json.find("version");
  if (found == json.end() || !found->is_number_integer())
    refuse_damaged(file, "it has no version");
  const auto version = found->get<std::int64_t>();
  if (version > std::numeric_limits<int>::max())
    refuse_version(file, std::to_string(version), kManifestVersion);
  return static_cast<int>(version);
}

CheckpointManifest read_fields(const ManifestJson& json,
                               const std::string& file, int version) {
  try {
    if (!json.at("step").is_number_integer())
      refuse_damaged(file, "its step is not a whole number");
    return json.get<CheckpointManifest>();
  } catch (const ManifestJson::exception& error) {
    if (version > kManifestVersion)
      refuse_version(file, std::to_string(version), kManifestVersion);
    refuse_damaged(file, error.what());
  }
}

std::string shard_text(const std::map<std::string, std::string>& metadata,
                       const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

bool is_order(const ShardedPart& part) {
  if (part.order.empty()) return true;
  if (part.order.size() != part.shape.size()) return false;
  std::vector<std::int64_t> sorted = part.order;
  std::ranges::sort(sorted);
  for (std::size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] != static_cast<std::int64_t>(i)) return false;
  return true;
}

}  // namespace

void refuse_damaged(const std::string& file, const std::string& problem) {
  throw InvalidArgument(
      "\"" + file + "\" is damaged: " + problem +
      "\n  likely:  the disk lost a part of it, or it was changed"
      "\n  next:    use an earlier checkpoint");
}

void refuse_version(const std::string& file, const std::string& version,
                    int known) {
  throw NewerCheckpoint(
      "\"" + file + "\" is a checkpoint of format " + version +
      ", and this program knows formats up to " + std::to_string(known) +
      "\n  likely:  a later version of Lockstep wrote it"
      "\n  next:    resume with that version, or train from the start into "
      "another folder");
}

std::string to_text(CheckpointManifest manifest) {
  manifest.version = kManifestVersion;
  manifest.checksum = checksum_of(manifest);
  check_texts(manifest.texts);
  return ManifestJson(manifest).dump(1) + "\n";
}

CheckpointManifest parse_manifest(std::string_view text,
                                  const std::string& file) {
  const ManifestJson json =
      ManifestJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse_damaged(file, "it is not a JSON object");
  const int version = manifest_version(json, file);
  CheckpointManifest manifest = read_fields(json, file, version);
  if (version > kManifestVersion && !is_whole_but_for_version(manifest))
    refuse_version(file, std::to_string(version), kManifestVersion);
  if (version != kManifestVersion)
    refuse_damaged(file,
                   "it claims the unknown format " + std::to_string(version));
  if (const std::string found = checksum_of(manifest);
      found != manifest.checksum)
    refuse_damaged(file, "the checksum of its content is " + found +
                             ", expected \"" + manifest.checksum + "\"");
  for (std::size_t rank = 0; rank < manifest.shards.size(); ++rank)
    if (manifest.shards[rank].file != shard_name(rank, manifest.shards.size()))
      refuse_damaged(file, "its shard of rank " + std::to_string(rank) +
                               " is called \"" + manifest.shards[rank].file +
                               "\"");
  if (manifest.shards.empty() || manifest.step < 0)
    refuse_damaged(file, "it names no shards, or a step below 0");
  return manifest;
}

std::string shard_name(std::size_t rank, std::size_t ranks) {
  std::array<char, 80> text{};
  std::snprintf(text.data(), text.size(), "shard-%05zu-of-%05zu.safetensors",
                rank, ranks);
  return text.data();
}

std::map<std::string, std::string> shard_metadata(const ShardedParts& parts,
                                                  std::int64_t step,
                                                  std::size_t rank) {
  return {{kPartsKey, ManifestJson(parts).dump()},
          {kStepKey, std::to_string(step)},
          {kRankKey, std::to_string(rank)}};
}

ShardedParts parse_shard_metadata(
    const std::map<std::string, std::string>& metadata, std::int64_t step,
    std::size_t rank, const std::string& file) {
  if (shard_text(metadata, kStepKey) != std::to_string(step) ||
      shard_text(metadata, kRankKey) != std::to_string(rank))
    refuse_damaged(file, "it is the shard of rank \"" +
                             shard_text(metadata, kRankKey) + "\" of step \"" +
                             shard_text(metadata, kStepKey) +
                             "\", expected rank " + std::to_string(rank) +
                             " of step " + std::to_string(step));
  ShardedParts parts;
  try {
    parts = ManifestJson::parse(shard_text(metadata, kPartsKey))
                .get<ShardedParts>();
  } catch (const ManifestJson::exception& error) {
    refuse_damaged(file, error.what());
  }
  for (const auto& [name, part] : parts)
    if (!is_order(part) || part.begin < 0)
      refuse_damaged(file,
                     "the part of \"" + name + "\" is not one of its shape");
  return parts;
}

}  // namespace lockstep
