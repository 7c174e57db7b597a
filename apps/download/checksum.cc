#include "apps/download/checksum.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "lockstep/base/error.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

void check(int result) {
  if (result != 1)
    throw Error(
        "OpenSSL computes no MD5 checksum\n"
        "  next:    see whether its configuration allows only FIPS algorithms");
}

}  // namespace

void Md5::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Md5::Md5() : context_(EVP_MD_CTX_new()) {
  check(context_ ? EVP_DigestInit_ex(context_.get(), EVP_md5(), nullptr) : 0);
}

void Md5::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string Md5::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  check(EVP_DigestFinal_ex(context_.get(), digest.data(), &size));
  return fmt::format("{:02x}", fmt::join(std::span(digest).first(size), ""));
}

std::string md5_of_file(const std::filesystem::path& path) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  const FileDescriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw SystemError("cannot open " + path.string(), errno);
  std::vector<std::byte> piece(kPieceBytes);
  Md5 md5;
  for (;;) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError("cannot read " + path.string(), errno);
    if (got == 0) return md5.hex();
    md5.update(std::span(piece).first(static_cast<std::size_t>(got)));
  }
}

}  // namespace lockstep
