// A malloc to preload, like jemalloc and tcmalloc: glibc's free() aborts on its
// blocks.
//
// Threads: any thread.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {

void* __libc_malloc(std::size_t bytes);
void __libc_free(void* block);

__attribute__((visibility("default"))) void* aligned_alloc(
    std::size_t alignment, std::size_t bytes) {
  constexpr std::size_t kLeast = 32;
  if (alignment < kLeast) alignment = kLeast;
  auto* const base =
      static_cast<std::byte*>(__libc_malloc(bytes + 2 * alignment));
  if (base == nullptr) return nullptr;
  // Inside glibc's block, after the data needed to find and copy it.
  const auto place = reinterpret_cast<std::uintptr_t>(base) + alignment;
  auto* const block = base + alignment + (alignment - place % alignment);
  std::memcpy(block - sizeof base, &base, sizeof base);
  std::memcpy(block - 2 * sizeof base, &bytes, sizeof bytes);
  return block;
}

__attribute__((visibility("default"))) void* malloc(std::size_t bytes) {
  return aligned_alloc(1, bytes);
}

__attribute__((visibility("default"))) void* memalign(std::size_t alignment,
                                                      std::size_t bytes) {
  return aligned_alloc(alignment, bytes);
}

__attribute__((visibility("default"))) int posix_memalign(void** block,
                                                          std::size_t alignment,
                                                          std::size_t bytes) {
  *block = aligned_alloc(alignment, bytes);
  return *block == nullptr ? ENOMEM : 0;
}

__attribute__((visibility("default"))) void free(void* block) {
  if (block == nullptr) return;
  void* base = nullptr;
  std::memcpy(&base, static_cast<std::byte*>(block) - sizeof base, sizeof base);
  __libc_free(base);
}

__attribute__((visibility("default"))) void* calloc(std::size_t count,
                                                    std::size_t bytes) {
  void* const block = malloc(count * bytes);
  if (block != nullptr) std::memset(block, 0, count * bytes);
  return block;
}

__attribute__((visibility("default"))) void* realloc(void* old,
                                                     std::size_t bytes) {
  void* const block = malloc(bytes);
  if (old == nullptr || block == nullptr) return block;
  std::size_t had = 0;
  std::memcpy(&had, static_cast<std::byte*>(old) - 2 * sizeof old, sizeof had);
  std::memcpy(block, old, had < bytes ? had : bytes);
  free(old);
  return block;
}

}  // extern "C"
