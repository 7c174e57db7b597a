// The libFuzzer target for dumps, which may be truncated or come from any
// source: no bytes may crash the parser, and a record that it accepts must
// survive being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lockstep/base/error.h"
#include "src/comm/diagnosis/record.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace lockstep;
  RankRecord record;
  try {
    record = decode_record({reinterpret_cast<const char*>(data), size});
  } catch (const InvalidArgument&) {
    return 0;
  }
  for (const OperationRecord& operation : record.operations)
    describe(operation);
  const std::string text = encode_record(record);
  if (encode_record(decode_record(text)) != text) std::abort();
  return 0;
}
