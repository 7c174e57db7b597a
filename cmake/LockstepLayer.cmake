# lockstep_layer(NAME [USES layer…] [LIBRARIES private library…])
#
# Declares the layer in the current folder: target lockstep_NAME, alias
# lockstep::NAME. Files are found by name:
#   *_test.cc    go into the GoogleTest program lockstep_NAME_test
#   *_bench.cc, *_fuzz.cc, *_main.cc   are programs of their own, declared by
#                whoever needs them
#   the rest     is the library
# USES names the layers that this one may include; scripts/check_layers holds
# them against the ladder in docs/design/architecture.md.

add_library(lockstep_flags INTERFACE)
target_compile_options(lockstep_flags INTERFACE -Wall -Wextra -Wshadow
                                                -Wnon-virtual-dtor)
if(LOCKSTEP_SANITIZE)
  list(JOIN LOCKSTEP_SANITIZE "," lockstep_sanitizers)
  target_compile_options(
    lockstep_flags INTERFACE -fsanitize=${lockstep_sanitizers}
                             -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(lockstep_flags INTERFACE
                      -fsanitize=${lockstep_sanitizers})
endif()

function(lockstep_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "" "" "USES;LIBRARIES")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "*.cc")
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz|main)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")

  set(target lockstep_${name})
  add_library(${target} STATIC ${sources})
  add_library(lockstep::${name} ALIAS ${target})
  target_include_directories(
    ${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  list(TRANSFORM layer_USES PREPEND lockstep_)
  target_link_libraries(
    ${target} PUBLIC ${layer_USES}
    PRIVATE $<BUILD_INTERFACE:lockstep_flags> ${layer_LIBRARIES})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LAYERS ${name})

  if(LOCKSTEP_TESTS AND tests)
    add_executable(${target}_test ${tests})
    target_link_libraries(${target}_test PRIVATE ${target} lockstep_flags
                                                 ${layer_LIBRARIES} GTest::gmock
                                                 GTest::gtest_main)
    gtest_discover_tests(
      ${target}_test DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600 LABELS ${name})
  endif()
endfunction()
