// What the thread sanitizer is not to report from this program's tests.
#if defined(__SANITIZE_THREAD__)

// Debian's libgloo is not built for the sanitizer, which so cannot see how
// Gloo's thread lets go of a buffer before that is destroyed (atomic counts
// within the library), and reports that when groups end.
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_suppressions() {  // NOLINT: its name
  return "race:gloo::transport\n";
}

#endif
