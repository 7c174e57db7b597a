#include "src/torch/compare/fingerprint.h"

// The hash is compiled in: a program that links this library needs no xxHash.
#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): xxHash has it
#include <xxhash.h>

#include <vector>

#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

Fingerprint hash(const void* begin, std::size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(begin, bytes);
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace

Fingerprint fingerprint_of(std::span<const std::byte> bytes) {
  return hash(bytes.data(), bytes.size());
}

Fingerprint fingerprint_of(std::span<const Fingerprint> parts) {
  return hash(parts.data(), parts.size_bytes());
}

Fingerprint fingerprint_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const at::Tensor dense =
      resolved(tensor.detach().to(at::kCPU).to_dense()).contiguous();
  std::vector<std::int64_t> form = dense.sizes().vec();
  form.push_back(static_cast<std::int64_t>(dense.scalar_type()));
  const Fingerprint both[] = {hash(form.data(), form.size() * sizeof form[0]),
                              hash(dense.const_data_ptr(), dense.nbytes())};
  return fingerprint_of(std::span(both));
}

}  // namespace lockstep
