// Suppresses false reports of the thread sanitizer in this program's tests.
#if defined(__SANITIZE_THREAD__)

// Debian's libgloo is not built with the sanitizer, which therefore cannot see
// how Gloo's thread releases a buffer before that is destroyed (atomic counts
// within the library), and reports a race when groups end.
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_suppressions() {  // NOLINT: its name
  return "race:gloo::transport\n";
}

#endif
