// The libFuzzer target for the texts of a sharded checkpoint: the manifest, and
// what a shard says about its tensors. No bytes may crash a parser, and a
// manifest that was read must be written as the same.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "src/checkpoint/checkpoint_manifest.h"

namespace lockstep {
namespace {

void parse(std::string_view text) {
  try {
    const CheckpointManifest read = parse_manifest(text, "manifest.json");
    const std::string written = to_text(read);
    if (to_text(parse_manifest(written, "manifest.json")) != written)
      std::abort();
  } catch (const InvalidArgument&) {
  }
  auto metadata = shard_metadata({}, 7, 3);
  for (auto& [key, value] : metadata)
    if (value == "{}" || value == "null") value = text;
  try {
    parse_shard_metadata(metadata, 7, 3, "shard");
  } catch (const InvalidArgument&) {
  }
}

// Random bytes hardly ever make a manifest: they change one.
void change_and_parse(std::string_view bytes) {
  CheckpointManifest manifest{.step = 7,
                              .texts = {{"lockstep.ranks", "2"}},
                              .shards = {{shard_name(0, 2), 10, "00000000"},
                                         {shard_name(1, 2), 12, "ffffffff"}}};
  std::string text = to_text(manifest);
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2)
    text[static_cast<unsigned char>(bytes[i]) % text.size()] = bytes[i + 1];
  parse(text);
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  lockstep::parse(text);
  lockstep::change_and_parse(text);
  return 0;
}
