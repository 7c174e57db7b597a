// MD5 checksums (RFC 1321), by which known files are recognised; OpenSSL
// computes them.
//
// Threads: one thread at a time per object.
// Errors:  SystemError for a file that cannot be read; Error where OpenSSL
//          refuses MD5.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace lockstep {

class Md5 {
 public:
  Md5();

  void update(std::span<const std::byte> bytes);

  // The checksum as 32 lower-case hexadecimal digits. Call it once, at the end.
  std::string hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };

  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// The checksum of the regular file `path`.
std::string md5_of_file(const std::filesystem::path& path);

}  // namespace lockstep
