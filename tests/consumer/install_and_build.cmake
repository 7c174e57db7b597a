# Installs BUILD under SCRATCH, moves that elsewhere, then configures, builds and
# runs PROJECT with the program SOURCE, knowing nothing but the new prefix. If GLOO
# was built, its plug-in must be found there too.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${SCRATCH}/installed")
file(RENAME "${SCRATCH}/installed" "${SCRATCH}/prefix")
# The package must find LibTorch by itself.
unset(ENV{LOCKSTEP_TORCH})
run("${CMAKE_COMMAND}" -S "${PROJECT}" -B "${SCRATCH}/build" -G Ninja
    "-DCMAKE_PREFIX_PATH=${SCRATCH}/prefix" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
    "-DSOURCE=${SOURCE}")
run("${CMAKE_COMMAND}" --build "${SCRATCH}/build")
run("${SCRATCH}/build/consumer")
if(GLOO)
  run("${SCRATCH}/build/plugins" "${SCRATCH}/prefix/${LIBDIR}/lockstep")
endif()
