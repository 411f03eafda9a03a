# Fails when an object compiled for one instruction set defines a symbol that the linker may merge
# with others' (see kernels/README.md). NM: the tool; OBJECTS: all objects of the kernel library.
foreach(object IN LISTS OBJECTS)
  if(object MATCHES "/ops_avx[^/]*$")
    execute_process(COMMAND ${NM} -C ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" shared "${symbols}")
    list(FILTER shared EXCLUDE REGEX "__gxx_personality|__asan|__ubsan|__odr")
    if(shared)
      message(FATAL_ERROR "${object} shares: ${shared}")
    endif()
  endif()
endforeach()
